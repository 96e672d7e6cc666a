package benchmark;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;

/**
 * When each reading of "fresh" was first seen: one lookup after the other. Prints "begun" once there is one, and ends with
 * one line of JSON: once it has seen the last one, or when its time is over.
 */
public final class Sightings {
    public static void main(String[] arguments) throws Exception {
        long until = Long.getLong("until");
        long ends = System.nanoTime() + Long.getLong("seconds") * 1_000_000_000L;
        long pauseNanos = Long.getLong("pauseMicros") * 1_000L;
        Reader reader = new Reader();
        System.out.println("begun");
        StringBuilder seen = new StringBuilder();
        long newest = -1;
        while (newest < until && System.nanoTime() < ends) {
            long number;
            try {
                number = reader.read(Reader.FRESH).get().f0.longValue();
            } catch (ExecutionException e) { // what is away will be seen late
                continue;
            }
            long now = System.nanoTime();
            if (number > newest) {
                newest = number;
                seen.append(seen.length() == 0 ? "" : ", ").append('[').append(number).append(", ").append(now).append(']');
            }
            if (pauseNanos > 0) LockSupport.parkNanos(pauseNanos);
        }
        System.out.println("{\"seen\": [" + seen + "]}");
        System.exit(0); // the client's threads are none of daemons
    }
}
