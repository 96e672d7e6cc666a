package benchmark;

import java.io.IOException;
import java.util.concurrent.CountDownLatch;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Flink in one process, with a job that keeps each sensor's last reading. Prints "loaded" once there were as many readings
 * as sensors. They are its own, or those of a Kafka topic: {"sensor": "fresh", "number": 17}.
 */
public final class Server {
    private static final int KEYS = Integer.getInteger("keys");
    private static final CountDownLatch LOADING = new CountDownLatch(KEYS);

    /** The state that is read. */
    static final class LastReading extends KeyedProcessFunction<String, Tuple3<String, Double, Long>, Void> {
        private transient ValueState<Tuple2<Double, Long>> last;

        @Override
        public void open(OpenContext context) {
            ValueStateDescriptor<Tuple2<Double, Long>> descriptor = Reader.descriptor();
            descriptor.setQueryable(Reader.STATE);
            last = getRuntimeContext().getState(descriptor);
        }

        @Override
        public void processElement(Tuple3<String, Double, Long> event, Context context, Collector<Void> out)
                throws Exception {
            last.update(Tuple2.of(event.f1, event.f2));
            LOADING.countDown();
        }
    }

    /** A record's JSON, with the time at which it is read. */
    static final class Json extends AbstractDeserializationSchema<Tuple3<String, Double, Long>> {
        private transient ObjectMapper mapper;

        Json() {
            super(new TypeHint<Tuple3<String, Double, Long>>() {});
        }

        @Override
        public void open(InitializationContext context) {
            mapper = new ObjectMapper();
        }

        @Override
        public Tuple3<String, Double, Long> deserialize(byte[] value) throws IOException {
            JsonNode reading = mapper.readTree(value);
            return Tuple3.of(reading.get("sensor").asText(), reading.get("number").asDouble(), System.nanoTime());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = configuration();
        MiniCluster cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(configuration)
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(1)
                                .build());
        cluster.start();
        cluster.submitJob(job(configuration)).get();
        cluster.requestJobResult(Reader.JOB)
                .thenAccept(
                        result -> {
                            System.err.println("the job ended: " + result.getSerializedThrowable());
                            Runtime.getRuntime().halt(1);
                        });
        LOADING.await();
        System.out.println("loaded");
        Thread.currentThread().join(); // until a signal ends the process
    }

    private static Configuration configuration() {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", System.getProperty("backend"));
        configuration.setString("execution.buffer-timeout.interval", System.getProperty("bufferTimeoutMs") + " ms");
        configuration.setString("queryable-state.enable", "true");
        configuration.setString("queryable-state.proxy.ports", System.getProperty("proxyPort"));
        configuration.setString("queryable-state.server.ports", System.getProperty("serverPort"));
        for (String threads : new String[] {"network-threads", "query-threads"}) {
            configuration.setString("queryable-state.proxy." + threads, System.getProperty("threads"));
            configuration.setString("queryable-state.server." + threads, System.getProperty("threads"));
        }
        configuration.setString("taskmanager.memory.managed.size", "512m");
        configuration.setString("taskmanager.memory.network.min", "64m");
        configuration.setString("taskmanager.memory.network.max", "64m");
        configuration.setString("io.tmp.dirs", System.getProperty("java.io.tmpdir"));
        configuration.setString("jobmanager.bind-host", "127.0.0.1");
        configuration.setString("rest.bind-address", "127.0.0.1");
        configuration.setString("rest.bind-port", "0");
        return configuration;
    }

    private static JobGraph job(Configuration configuration) {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(1);
        readings(environment).keyBy(event -> event.f0).process(new LastReading());
        return environment.getStreamGraph().getJobGraph(Server.class.getClassLoader(), Reader.JOB);
    }

    private static DataStream<Tuple3<String, Double, Long>> readings(StreamExecutionEnvironment environment) {
        String topic = System.getProperty("topic", "");
        if (topic.isEmpty()) {
            return environment
                    .addSource(new Readings(KEYS))
                    .returns(TypeInformation.of(new TypeHint<Tuple3<String, Double, Long>>() {}));
        }
        KafkaSource<Tuple3<String, Double, Long>> source =
                KafkaSource.<Tuple3<String, Double, Long>>builder()
                        .setBootstrapServers(System.getProperty("bootstrapServers"))
                        .setTopics(topic)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setValueOnlyDeserializer(new Json())
                        .build();
        return environment.fromSource(source, WatermarkStrategy.noWatermarks(), topic);
    }
}
