package sheaf;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.MongoCredential;
import com.mongodb.MongoCredential.OidcCallbackResult;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.io.FileInputStream;
import java.io.InputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.bson.Document;

/** Logs in by each of the cases in $SHEAF_LOGINS (see tests/drivers/logins) through the Java driver. */
public final class Logins {
  private static final char[] PASSWORD = "pencil".toCharArray();

  private Logins() {}

  public static void main(String[] arguments) {
    Document given = Document.parse(System.getenv("SHEAF_LOGINS"));
    for (Document login : given.getList("cases", Document.class)) {
      String told;
      try {
        told = user(login);
      } catch (Exception error) {
        told = "refused\t" + String.valueOf(error.getMessage()).replace('\n', ' ');
      }
      System.out.println(login.getString("name") + "\t" + told);
    }
  }

  /** As whom the client has come in. */
  private static String user(Document login) throws Exception {
    MongoClientSettings.Builder settings = MongoClientSettings.builder()
        .applyConnectionString(new ConnectionString(login.getString("uri")))
        .applyToClusterSettings(cluster -> cluster.serverSelectionTimeout(20, TimeUnit.SECONDS));
    String token = login.getString("token");
    if (token != null) {
      MongoCredential.OidcCallback callback = context -> new OidcCallbackResult(token, Duration.ofMinutes(10));
      settings.credential(MongoCredential.createOidcCredential(null)
          .withMechanismProperty(MongoCredential.OIDC_CALLBACK_KEY, callback));
    }
    if (login.getString("ca") != null) {
      SSLContext trusting = context(login.getString("ca"), login.getString("identity"));
      settings.applyToSslSettings(ssl -> ssl.enabled(true).context(trusting));
    }
    try (MongoClient client = MongoClients.create(settings.build())) {
      Document status = client.getDatabase("admin").runCommand(new Document("connectionStatus", 1));
      Document user = status.get("authInfo", Document.class).getList("authenticatedUsers", Document.class).get(0);
      return user.getString("user") + "@" + user.getString("db");
    }
  }

  /** What trusts this authority and shows this identity; the driver itself reads no files. */
  private static SSLContext context(String authority, String identity) throws Exception {
    KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
    trusted.load(null, null);
    try (InputStream file = new FileInputStream(authority)) {
      trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
    }
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(trusted);
    KeyManager[] keys = null;
    if (identity != null) {
      KeyStore own = KeyStore.getInstance("PKCS12");
      try (InputStream file = new FileInputStream(identity)) {
        own.load(file, PASSWORD);
      }
      KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
      factory.init(own, PASSWORD);
      keys = factory.getKeyManagers();
    }
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys, trust.getTrustManagers(), null);
    return context;
  }
}
