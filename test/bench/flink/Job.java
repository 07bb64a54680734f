import com.mysql.cj.jdbc.MysqlXADataSource;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import javax.sql.XADataSource;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichFilterFunction;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.utils.ParameterTool;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.JdbcSink;
import org.apache.flink.connector.jdbc.JdbcStatementBuilder;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.DataStreamUtils;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.ChainingStrategy;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.Collector;
import org.apache.flink.util.function.SerializableSupplier;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Books each event once: a ledger row a message, or the totals of each checkpoint.
 *
 * What was measured to be best on two cores that broker and database share is the default. --parallelism, --interval, --batch and
 * --sinks try something else.
 */
public class Job {
  public static void main(String[] args) throws Exception {
    ParameterTool p = ParameterTool.fromArgs(args);
    int parallelism = p.getInt("parallelism", 1);
    String topic = p.getRequired("topic");
    String checkpoints = "file://" + p.getRequired("checkpoints");
    Configuration c = new Configuration();
    c.setString("parallelism.default", Integer.toString(parallelism));
    c.setString("execution.checkpointing.interval", p.get("interval", "1s"));
    c.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    c.setString("execution.checkpointing.storage", "filesystem");
    c.setString("execution.checkpointing.dir", checkpoints);
    // The ids are on the heap; a checkpoint stores only what has changed since the last one.
    c.setString("state.backend.type", "hashmap");
    c.setString("state.changelog.enabled", "true");
    c.setString("state.changelog.storage", "filesystem");
    c.setString("state.changelog.dstl.dfs.base-path", checkpoints + "/changelog");
    c.setString("pipeline.object-reuse", "true");
    c.setString("pipeline.generic-types", "false");
    c.setString("restart-strategy.type", "none"); // a failure ends the run
    c.setString("taskmanager.memory.network.min", "64mb");
    c.setString("taskmanager.memory.network.max", "64mb");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(c);

    KafkaSource<Event> source = KafkaSource.<Event>builder()
        .setBootstrapServers(p.getRequired("brokers"))
        .setTopics(topic)
        .setGroupId(p.getRequired("group"))
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setProperty("isolation.level", "read_committed")
        .setProperty("max.poll.records", "5000")
        .setProperty("max.partition.fetch.bytes", "4194304")
        .setDeserializer(new Decode(p.getRequired("type-prefix"), Set.of(p.getRequired("currencies").split(","))))
        .build();
    DataStream<Event> messages = env.fromSource(source, WatermarkStrategy.noWatermarks(), "messages");
    KeySelector<Event, Tuple2<Long, Long>> id = e -> Tuple2.of(e.keyHigh, e.keyLow);
    TypeInformation<Tuple2<Long, Long>> idType = Types.TUPLE(Types.LONG, Types.LONG);
    // One task has all keys anyway: then decoding and dedup are one thread, and nothing is serialized between them.
    DataStream<Event> fresh = (parallelism == 1 ? DataStreamUtils.reinterpretAsKeyedStream(messages, id, idType) : messages.keyBy(id, idType))
        .filter(new Fresh());

    if (p.has("ledger")) {
      fresh.rebalance()
          .addSink(exactlyOnce(p, Ledger.sql(topic), new Ledger()))
          .setParallelism(p.getInt("sinks", 2)); // threads and connections of their own: MySQL works while the next rows are decoded
    } else {
      // One sink: two would wait for each other's locks on gaps between rows, and neither for its own checkpoint.
      fresh.transform("sum", TypeInformation.of(Total.class), new Sum())
          .addSink(exactlyOnce(p, Totals.sql(topic), new Totals()))
          .setParallelism(1)
          .disableChaining();
    }
    env.execute("billing");
  }

  /** Decodes in the source's thread. What is no event is left out. */
  static class Decode implements KafkaRecordDeserializationSchema<Event> {
    private final String typePrefix;
    private final Set<String> currencies;
    private transient Event.Reader reader;

    Decode(String typePrefix, Set<String> currencies) {
      this.typePrefix = typePrefix;
      this.currencies = currencies;
    }

    @Override
    public void open(DeserializationSchema.InitializationContext unused) {
      System.out.println("at work"); // which TestBenchFlink waits for
      reader = new Event.Reader(typePrefix, currencies);
    }

    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Event> out) {
      Event e = reader.read(record);
      if (e != null) {
        out.collect(e);
      }
    }

    @Override
    public TypeInformation<Event> getProducedType() {
      return TypeInformation.of(Event.class);
    }
  }

  /** Lets the first event of an id pass. Ids are forgotten after 35 days, as the service forgets them. */
  static class Fresh extends RichFilterFunction<Event> {
    private transient ValueState<Long> content;

    @Override
    public void open(Configuration unused) {
      ValueStateDescriptor<Long> d = new ValueStateDescriptor<>("content", Types.LONG);
      d.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(35)).cleanupIncrementally(1, false).build());
      content = getRuntimeContext().getState(d);
    }

    @Override
    public boolean filter(Event e) throws IOException {
      if (content.value() != null) {
        return false;
      }
      content.update(e.content);
      return true;
    }
  }

  /** What one checkpoint adds to one row of the totals. */
  public static class Total {
    public String account;
    public String sku;
    public String unit;
    public String currency;
    public long window;
    public BigDecimal charge = BigDecimal.ZERO;
    public BigDecimal credit = BigDecimal.ZERO;
    public BigDecimal quantity = BigDecimal.ZERO;
    public long entries;
  }

  /** Adds up, and hands the sums on before each checkpoint's barrier: there is nothing to keep in state. */
  static class Sum extends AbstractStreamOperator<Total> implements OneInputStreamOperator<Event, Total> {
    private record Key(String account, String sku, String unit, String currency, long window) { }

    private transient Map<Key, Total> sums;

    Sum() {
      chainingStrategy = ChainingStrategy.ALWAYS; // in the thread of the filter before it
    }

    @Override
    public void open() {
      sums = new HashMap<>();
    }

    @Override
    public void processElement(StreamRecord<Event> record) {
      Event e = record.getValue();
      Key key = new Key(e.account, e.sku, e.unit, e.currency, e.micros - Math.floorMod(e.micros, Event.Times.HOUR));
      Total t = sums.get(key);
      if (t == null) {
        t = new Total();
        t.account = key.account;
        t.sku = key.sku;
        t.unit = key.unit;
        t.currency = key.currency;
        t.window = key.window;
        sums.put(key, t);
      }
      t.entries++;
      if (e.credit) {
        t.credit = t.credit.add(e.amount);
      } else {
        t.charge = t.charge.add(e.amount);
      }
      if (e.quantity != null) {
        t.quantity = e.credit ? t.quantity.subtract(e.quantity) : t.quantity.add(e.quantity);
      }
    }

    @Override
    public void prepareSnapshotPreBarrier(long checkpoint) {
      for (Total t : sums.values()) {
        output.collect(new StreamRecord<>(t));
      }
      sums.clear();
    }

    @Override
    public void finish() {
      prepareSnapshotPreBarrier(0);
    }
  }

  /** For a VARBINARY: a text would go through MySQL's character sets. */
  private static byte[] bytes(String s) {
    return s.getBytes(StandardCharsets.UTF_8);
  }

  static class Ledger implements JdbcStatementBuilder<Event> {
    /** The same in every row is in the text. The seq is 0: Flink tells a sink's row of no number of a checkpoint. */
    static String sql(String topic) {
      return "INSERT INTO flink_ledger (kafka_topic, kafka_partition, kafka_offset, seq, tenant_id, source, event_id, entry_type,"
          + " account_id, sku, unit, currency, amount, quantity, note, occurred_at, window_start, booked_period, dedup_key, content_hash)"
          + " VALUES ('" + topic + "', ?, ?, 0, 'default', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    }

    @Override
    public void accept(PreparedStatement s, Event e) throws SQLException {
      String occurred = Event.Times.format(e.micros);
      s.setInt(1, e.partition);
      s.setLong(2, e.offset);
      s.setBytes(3, bytes(e.source));
      s.setBytes(4, bytes(e.id));
      s.setString(5, e.credit ? "credit" : "charge");
      s.setBytes(6, bytes(e.account));
      s.setBytes(7, bytes(e.sku));
      s.setBytes(8, bytes(e.unit));
      s.setString(9, e.currency);
      s.setBigDecimal(10, e.amount);
      s.setBigDecimal(11, e.quantity);
      s.setBytes(12, e.note == null ? null : bytes(e.note));
      s.setString(13, occurred);
      s.setString(14, occurred.substring(0, 13) + ":00:00");
      s.setString(15, occurred.substring(0, 7));
      s.setBytes(16, e.key());
      s.setBytes(17, Event.bytes(e.content));
    }
  }

  static class Totals implements JdbcStatementBuilder<Total> {
    /** One row for all partitions: the partition is 0. */
    static String sql(String topic) {
      return "INSERT INTO flink_total (total_key, kafka_topic, kafka_partition, tenant_id, account_id, sku, unit, currency,"
          + " window_start, booked_period, charge_amount, credit_amount, quantity, entry_count, updated_at)"
          + " VALUES (?, '" + topic + "', 0, 'default', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE"
          + " charge_amount = charge_amount + VALUES(charge_amount), credit_amount = credit_amount + VALUES(credit_amount),"
          + " quantity = quantity + VALUES(quantity), entry_count = entry_count + VALUES(entry_count), updated_at = VALUES(updated_at)";
    }

    private transient MessageDigest sha;

    @Override
    public void accept(PreparedStatement s, Total t) throws SQLException {
      String window = Event.Times.format(t.window);
      if (sha == null) {
        sha = Event.sha256();
      }
      for (String part : new String[] {t.account, t.sku, t.unit, t.currency}) {
        sha.update(bytes(part));
        sha.update((byte) 0);
      }
      s.setBytes(1, Arrays.copyOf(sha.digest(Event.bytes(t.window)), 16));
      s.setBytes(2, bytes(t.account));
      s.setBytes(3, bytes(t.sku));
      s.setBytes(4, bytes(t.unit));
      s.setString(5, t.currency);
      s.setString(6, window.substring(0, 19));
      s.setString(7, window.substring(0, 7));
      s.setBigDecimal(8, t.charge);
      s.setBigDecimal(9, t.credit);
      s.setBigDecimal(10, t.quantity);
      s.setLong(11, t.entries);
    }
  }

  static <T> SinkFunction<T> exactlyOnce(ParameterTool p, String sql, JdbcStatementBuilder<T> row) {
    String url = p.getRequired("url");
    String user = p.getRequired("user");
    String password = p.getRequired("password");
    return JdbcSink.exactlyOnceSink(sql, row,
        JdbcExecutionOptions.builder().withBatchSize(p.getInt("batch", 1000)).withBatchIntervalMs(0).withMaxRetries(0).build(),
        JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(),
        (SerializableSupplier<XADataSource>) () -> {
          MysqlXADataSource d = new MysqlXADataSource();
          d.setUrl(url);
          d.setUser(user);
          d.setPassword(password);
          return d;
        });
  }
}
