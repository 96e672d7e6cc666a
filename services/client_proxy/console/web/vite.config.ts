import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const ROOT = import.meta.dirname;
const OUT = join(ROOT, "..", "static");
const MANIFEST = "built-from.json";
const NOT_SOURCES = new Set(["node_modules", ".vite"]);

/** SHA-256 of each file below a folder, by its path there. */
function hashes(folder: string, left_out: (name: string) => boolean): Record<string, string> {
  const found: Record<string, string> = {};
  const walk = (at: string): void => {
    for (const name of readdirSync(at).sort()) {
      const path = join(at, name);
      if (left_out(name)) continue;
      if (statSync(path).isDirectory()) walk(path);
      else found[relative(folder, path)] = createHash("sha256").update(readFileSync(path)).digest("hex");
    }
  };
  walk(folder);
  return found;
}

/** Says beside the pages what they were built of: a test compares, without Node. */
function manifest(): Plugin {
  return {
    name: "manifest",
    apply: "build",
    closeBundle() {
      const told = {
        sources: hashes(ROOT, (name) => NOT_SOURCES.has(name)),
        built: hashes(OUT, (name) => name === MANIFEST),
      };
      writeFileSync(join(OUT, MANIFEST), JSON.stringify(told, null, 1) + "\n");
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [manifest()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: "es2022",
    // What the proxy's policy for content refuses: data: URLs and scripts within the page.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 300,
    rollupOptions: {
      // One name each, whatever they hold: they are asked for again each time, by ETag.
      output: { entryFileNames: "console.js", chunkFileNames: "[name].js", assetFileNames: "console[extname]" },
    },
  },
  // For `npm run dev`: the pages from here, the data from a proxy.
  server: { proxy: Object.fromEntries(["/console/api", "/v1"].map((path) => [path, "http://127.0.0.1:7402"])) },
});
