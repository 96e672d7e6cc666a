package benchmark;

import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.functions.source.SourceFunction;

/** A reading of every sensor, then 100 a second of sensors at random, and one of "fresh" every 100 to 150 ms. */
final class Readings implements SourceFunction<Tuple3<String, Double, Long>> {
    private static final long PAUSE_NANOS = 10_000_000;
    private static final long FRESH_NANOS = 100_000_000;

    private final int keys;
    private volatile boolean running = true;

    Readings(int keys) {
        this.keys = keys;
    }

    @Override
    public void run(SourceContext<Tuple3<String, Double, Long>> context) {
        for (int number = 0; number < keys && running; number++) emit(context, Reader.sensor(number), number);
        ThreadLocalRandom random = ThreadLocalRandom.current();
        long next = System.nanoTime();
        long nextFresh = next;
        double freshEvents = 0;
        while (running) {
            long now = System.nanoTime();
            if (now >= next) {
                int number = random.nextInt(keys);
                emit(context, Reader.sensor(number), number + 0.5); // clients check a value by its whole part
                next += PAUSE_NANOS;
            }
            if (now >= nextFresh) {
                emit(context, Reader.FRESH, freshEvents++);
                // Not in step with the flushes of Flink's buffers, which come every 100 ms.
                nextFresh = now + FRESH_NANOS + random.nextLong(FRESH_NANOS / 2);
            }
            LockSupport.parkNanos(Math.min(next, nextFresh) - System.nanoTime());
        }
    }

    private static void emit(SourceContext<Tuple3<String, Double, Long>> context, String sensor, double reading) {
        synchronized (context.getCheckpointLock()) {
            context.collect(Tuple3.of(sensor, reading, System.nanoTime()));
        }
    }

    @Override
    public void cancel() {
        running = false;
    }
}
