package benchmark;

import java.io.IOException;
import java.net.UnknownHostException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.BasicTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.queryablestate.client.QueryableStateClient;

/** Reads the server's state from another process: one connection, one event loop. Thread-safe. */
final class Reader {
    static final JobID JOB = new JobID(0, 1);
    static final String STATE = "readings";

    /** The key of the events whose freshness is measured. */
    static final String FRESH = "fresh";

    private static final long START_NANOS = 60_000_000_000L;

    private final QueryableStateClient client;
    private final ValueStateDescriptor<Tuple2<Double, Long>> state = descriptor();

    /** Returns once the server answers. */
    Reader() throws UnknownHostException, InterruptedException, ExecutionException {
        client = new QueryableStateClient("127.0.0.1", Integer.getInteger("proxyPort"));
        client.setExecutionConfig(new ExecutionConfig());
        long began = System.nanoTime();
        while (true) {
            try {
                read(FRESH).get();
                return;
            } catch (ExecutionException e) { // the job's master may not yet know where the state is
                if (System.nanoTime() - began > START_NANOS) throw e;
                Thread.sleep(100);
            }
        }
    }

    /** A sensor's last reading, and the System.nanoTime() of its event: on Linux that clock is one for all processes. */
    static ValueStateDescriptor<Tuple2<Double, Long>> descriptor() {
        return new ValueStateDescriptor<>("reading", TypeInformation.of(new TypeHint<>() {}));
    }

    static String sensor(int number) {
        return "sensor-" + number;
    }

    CompletableFuture<Tuple2<Double, Long>> read(String sensor) {
        return client.getKvState(JOB, STATE, sensor, BasicTypeInfo.STRING_TYPE_INFO, state).thenApply(Reader::value);
    }

    private static Tuple2<Double, Long> value(ValueState<Tuple2<Double, Long>> state) {
        try {
            return state.value();
        } catch (IOException e) {
            throw new CompletionException(e);
        }
    }
}
