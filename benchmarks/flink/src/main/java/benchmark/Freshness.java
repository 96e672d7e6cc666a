package benchmark;

import java.util.Arrays;
import java.util.Locale;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.util.EnvironmentInformation;

/** From an event to the first answer that shows it: one lookup after the other. Prints one line of JSON. */
public final class Freshness {
    public static void main(String[] arguments) throws Exception {
        long warmNanos = Integer.getInteger("warmSeconds") * 1_000_000_000L;
        double[] milliseconds = new double[Integer.getInteger("samples")];
        Reader reader = new Reader();
        double last = 0;
        for (long began = System.nanoTime(); System.nanoTime() - began < warmNanos; )
            last = reader.read(Reader.FRESH).get().f0;
        long polls = 0;
        int missed = 0;
        long began = System.nanoTime();
        for (int sample = 0; sample < milliseconds.length; polls++) {
            Tuple2<Double, Long> reading = reader.read(Reader.FRESH).get();
            long now = System.nanoTime();
            if (reading.f0 == last) continue;
            missed += (int) (reading.f0 - last) - 1;
            last = reading.f0;
            milliseconds[sample++] = (now - reading.f1) / 1e6;
        }
        double elapsed = (System.nanoTime() - began) / 1e9;
        Arrays.sort(milliseconds);
        System.out.printf(
                Locale.ROOT,
                "{\"flink\": \"%s\", \"samples\": %d, \"missed\": %d, \"polls_per_second\": %.0f,"
                        + " \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f}%n",
                EnvironmentInformation.getVersion(),
                milliseconds.length,
                missed,
                polls / elapsed,
                milliseconds[milliseconds.length / 2],
                milliseconds[milliseconds.length * 99 / 100],
                milliseconds[milliseconds.length - 1]);
        System.exit(0); // the client's threads are none of daemons
    }
}
