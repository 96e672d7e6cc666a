/** Light, dark, or what the system says; remembered by this browser. */

import { useEffect, useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";

const KEY = "keyhole-theme";
const THEMES: Theme[] = ["system", "light", "dark"];

function remembered(): Theme {
  try {
    const found = localStorage.getItem(KEY) as Theme | null;
    return found && THEMES.includes(found) ? found : "system";
  } catch {
    return "system"; // the browser keeps nothing for this page
  }
}

function show(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(remembered);
  useEffect(() => {
    show(theme);
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // Then it holds until the page is closed.
    }
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!)];
}

/** A colour of style.css, as it is now. */
export const colour = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
