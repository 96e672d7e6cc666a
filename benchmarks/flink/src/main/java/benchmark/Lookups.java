package benchmark;

import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.flink.runtime.util.EnvironmentInformation;

/**
 * A closed loop: each answer sends the next lookup, of a key drawn at random, as benchmarks/lookups.py does it. Prints
 * one line of JSON per number of outstanding lookups. A lookup that fails, or finds another sensor's value, ends it.
 */
public final class Lookups {
    private static final int LONGEST_US = 4_000_000;

    private final Reader reader;
    private final String[] sensors;
    private final CountDownLatch loops;

    /** How many lookups took so many microseconds. */
    private final AtomicIntegerArray latencies = new AtomicIntegerArray(LONGEST_US + 1);

    private volatile boolean recording;
    private volatile boolean stopping;

    private Lookups(Reader reader, String[] sensors, int outstanding) {
        this.reader = reader;
        this.sensors = sensors;
        this.loops = new CountDownLatch(outstanding);
    }

    public static void main(String[] levels) throws Exception {
        int compileSeconds = Integer.getInteger("compileSeconds");
        int warmSeconds = Integer.getInteger("warmSeconds");
        double seconds = Double.parseDouble(System.getProperty("seconds"));
        Reader reader = new Reader();
        String[] sensors = new String[Integer.getInteger("keys")];
        for (int number = 0; number < sensors.length; number++) sensors[number] = Reader.sensor(number);
        new Lookups(reader, sensors, 64).run(compileSeconds, 0);
        for (String level : levels) {
            int outstanding = Integer.parseInt(level);
            Lookups lookups = new Lookups(reader, sensors, outstanding);
            double elapsed = lookups.run(warmSeconds, seconds);
            System.out.println(lookups.line(outstanding, elapsed));
        }
        System.exit(0); // the client's threads are none of daemons
    }

    /** Returns for how many seconds lookups were recorded, once none is under way any more. */
    private double run(double warmSeconds, double seconds) throws InterruptedException {
        for (long loop = loops.getCount(); loop > 0; loop--) lookUp();
        Thread.sleep((long) (warmSeconds * 1000));
        recording = true;
        long began = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        recording = false;
        double elapsed = (System.nanoTime() - began) / 1e9;
        stopping = true;
        loops.await();
        return elapsed;
    }

    private void lookUp() {
        int number = ThreadLocalRandom.current().nextInt(sensors.length);
        long began = System.nanoTime();
        reader.read(sensors[number])
                .whenComplete(
                        (reading, failure) -> {
                            if (failure != null || reading.f0.intValue() != number) {
                                System.err.println(sensors[number] + ": " + reading + ", " + failure);
                                Runtime.getRuntime().halt(1);
                            }
                            if (recording) {
                                long us = (System.nanoTime() - began) / 1000;
                                latencies.incrementAndGet((int) Math.min(us, LONGEST_US));
                            }
                            if (stopping) loops.countDown();
                            else lookUp();
                        });
    }

    private String line(int outstanding, double elapsed) {
        long count = 0;
        for (int us = 0; us <= LONGEST_US; us++) count += latencies.get(us);
        return String.format(
                Locale.ROOT,
                "{\"flink\": \"%s\", \"keys\": %d, \"outstanding\": %d, \"lookups_per_second\": %.0f,"
                        + " \"p50_us\": %d, \"p99_us\": %d}",
                EnvironmentInformation.getVersion(),
                sensors.length,
                outstanding,
                count / elapsed,
                percentile(count / 2),
                percentile(count * 99 / 100));
    }

    /** Of the lookups in order of their latency, the one that so many were faster than. */
    private int percentile(long faster) {
        int us = 0;
        for (long seen = latencies.get(0); seen <= faster && us < LONGEST_US; seen += latencies.get(us)) us++;
        return us;
    }
}
