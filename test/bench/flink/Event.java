import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.LocalDate;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/**
 * One message: a CloudEvent, structured, binary or without headers. It is read with what a job has to know to book it; the service
 * checks more (docs/data.md), such as keys that come twice.
 */
public class Event {
  public int partition;
  public long offset;
  public String source;
  public String id;
  public boolean credit;
  public String account;
  public String sku = "";
  public String unit = "";
  public String currency;
  public BigDecimal amount;
  public BigDecimal quantity;
  public String note;
  public long micros;
  public long keyHigh; // SHA-256, cut, of source and id
  public long keyLow;
  public long content; // a hash of what the event says

  static final int PLACES = 12;
  static final int INTEGER_DIGITS = 26;

  /** Reads messages. Used by one thread. */
  static class Reader {
    private final JsonFactory json = new JsonFactory();
    private final MessageDigest sha;
    private final String charge;
    private final String credit;
    private final Set<String> currencies;

    Reader(String typePrefix, Set<String> currencies) {
      charge = typePrefix + "charge.v1";
      credit = typePrefix + "credit.v1";
      this.currencies = currencies;
      sha = sha256();
    }

    /** The event that a record is, or null if it is none. */
    Event read(ConsumerRecord<byte[], byte[]> record) {
      Event e = new Event();
      e.partition = record.partition();
      e.offset = record.offset();
      try {
        String type = null;
        boolean binary = false;
        for (Header h : record.headers()) {
          if (h.key().startsWith("ce_")) {
            binary = true;
            type = e.attribute(h.key().substring(3), new String(h.value(), StandardCharsets.UTF_8), type);
          }
        }
        try (JsonParser p = json.createParser(record.value())) {
          if (p.nextToken() != JsonToken.START_OBJECT) {
            return null;
          }
          if (binary) {
            e.data(p);
          } else {
            type = e.envelope(p);
          }
          if (p.nextToken() != null) {
            return null;
          }
        }
        return finish(e, type) ? e : null;
      } catch (IOException | RuntimeException bad) { // no JSON, no number, no time
        return null;
      }
    }

    private boolean finish(Event e, String type) {
      e.credit = credit.equals(type);
      if (!e.credit && !charge.equals(type) || e.source == null || e.id == null || e.account == null || e.amount == null || e.micros == 0
          || !currencies.contains(e.currency)
          || e.amount.scale() > PLACES || e.amount.precision() - e.amount.scale() > INTEGER_DIGITS
          || e.amount.signum() == (e.credit ? 1 : -1)) {
        return false;
      }
      sha.update(e.source.getBytes(StandardCharsets.UTF_8));
      sha.update((byte) 0);
      byte[] key = sha.digest(e.id.getBytes(StandardCharsets.UTF_8));
      e.keyHigh = number(key, 0);
      e.keyLow = number(key, 8);
      long h = e.micros;
      h = 0x9e3779b97f4a7c15L * (h ^ e.account.hashCode());
      h = 0x9e3779b97f4a7c15L * (h ^ e.sku.hashCode());
      h = 0x9e3779b97f4a7c15L * (h ^ e.unit.hashCode());
      h = 0x9e3779b97f4a7c15L * (h ^ e.currency.hashCode());
      h = 0x9e3779b97f4a7c15L * (h ^ e.amount.stripTrailingZeros().hashCode());
      e.content = e.quantity == null ? h : 0x9e3779b97f4a7c15L * (h ^ e.quantity.stripTrailingZeros().hashCode());
      return true;
    }
  }

  static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Reads the members of an object, up to its end. Returns the type. */
  private String envelope(JsonParser p) throws IOException {
    String type = null;
    for (String name; (name = p.nextFieldName()) != null; ) {
      JsonToken value = p.nextToken();
      if (value == JsonToken.START_OBJECT && name.equals("data")) {
        data(p);
      } else if (value == JsonToken.VALUE_STRING) {
        type = attribute(name, p.getText(), type);
      } else {
        p.skipChildren();
      }
    }
    return type;
  }

  private String attribute(String name, String value, String type) {
    switch (name) {
      case "id" -> id = value;
      case "source" -> source = value;
      case "subject" -> account = value;
      case "time" -> micros = Times.parse(value);
      case "type" -> type = value;
      default -> { }
    }
    return type;
  }

  private void data(JsonParser p) throws IOException {
    for (String name; (name = p.nextFieldName()) != null; ) {
      if (p.nextToken() != JsonToken.VALUE_STRING) {
        p.skipChildren();
        continue;
      }
      switch (name) {
        case "amount" -> amount = decimal(p);
        case "quantity" -> quantity = decimal(p);
        case "currency" -> currency = p.getText();
        case "sku" -> sku = p.getText();
        case "unit" -> unit = p.getText();
        case "reason" -> note = p.getText();
        default -> { }
      }
    }
  }

  private static BigDecimal decimal(JsonParser p) throws IOException {
    return new BigDecimal(p.getTextCharacters(), p.getTextOffset(), p.getTextLength());
  }

  private static long number(byte[] b, int at) {
    long n = 0;
    for (int i = at; i < at + 8; i++) {
      n = n << 8 | b[i] & 0xff;
    }
    return n;
  }

  byte[] key() {
    return bytes(keyHigh, keyLow);
  }

  static byte[] bytes(long... numbers) {
    byte[] b = new byte[8 * numbers.length];
    for (int i = 0; i < b.length; i++) {
      b[i] = (byte) (numbers[i / 8] >> 8 * (7 - i % 8));
    }
    return b;
  }

  /** Times in RFC 3339 and as MySQL takes them, without the formatters of java.time, which are slow. */
  static class Times {
    static final long SECOND = 1_000_000L;
    static final long HOUR = 3600 * SECOND;

    static long parse(String s) {
      long day = LocalDate.of(digits(s, 0, 4), digits(s, 5, 7), digits(s, 8, 10)).toEpochDay();
      long seconds = day * 86400 + digits(s, 11, 13) * 3600 + digits(s, 14, 16) * 60 + digits(s, 17, 19);
      int i = 19;
      long fraction = 0;
      if (s.charAt(i) == '.') {
        long place = SECOND / 10;
        for (i++; Character.isDigit(s.charAt(i)); i++, place /= 10) {
          fraction += place * (s.charAt(i) - '0');
        }
      }
      char zone = s.charAt(i);
      if (zone != 'Z' && zone != 'z') {
        int minutes = digits(s, i + 1, i + 3) * 60 + digits(s, i + 4, i + 6);
        seconds -= (zone == '-' ? -60L : 60L) * minutes;
      }
      return seconds * SECOND + fraction;
    }

    private static int digits(String s, int from, int to) {
      return Integer.parseInt(s, from, to, 10);
    }

    /** YYYY-MM-DD hh:mm:ss.ffffff */
    static String format(long micros) {
      LocalDate day = LocalDate.ofEpochDay(Math.floorDiv(micros, 24 * HOUR));
      long rest = Math.floorMod(micros, 24 * HOUR);
      byte[] b = "0000-00-00 00:00:00.000000".getBytes(StandardCharsets.ISO_8859_1);
      put(b, 0, 4, day.getYear());
      put(b, 5, 7, day.getMonthValue());
      put(b, 8, 10, day.getDayOfMonth());
      put(b, 11, 13, rest / HOUR);
      put(b, 14, 16, rest / (60 * SECOND) % 60);
      put(b, 17, 19, rest / SECOND % 60);
      put(b, 20, 26, rest % SECOND);
      return new String(b, StandardCharsets.ISO_8859_1);
    }

    private static void put(byte[] b, int from, int to, long n) {
      for (int i = to - 1; i >= from; i--, n /= 10) {
        b[i] = (byte) ('0' + n % 10);
      }
    }
  }
}
