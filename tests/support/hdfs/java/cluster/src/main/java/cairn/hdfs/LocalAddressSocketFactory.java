package cairn.hdfs;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.channels.SocketChannel;
import javax.net.SocketFactory;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;

/**
 * Sockets that leave from the address {@code cairn.local-address}: the NameNode knows a DataNode by where its calls come
 * from, so several on one machine need an address each. Only for a DataNode's own configuration.
 */
public final class LocalAddressSocketFactory extends SocketFactory implements Configurable {
    public static final String ADDRESS_KEY = "cairn.local-address";

    private Configuration conf;

    @Override
    public Socket createSocket() throws IOException {
        Socket socket = SocketChannel.open().socket();
        socket.bind(new InetSocketAddress(address(), 0));
        return socket;
    }

    @Override
    public Socket createSocket(String host, int port) throws IOException {
        return createSocket(InetAddress.getByName(host), port);
    }

    @Override
    public Socket createSocket(InetAddress host, int port) throws IOException {
        Socket socket = createSocket();
        socket.connect(new InetSocketAddress(host, port));
        return socket;
    }

    @Override
    public Socket createSocket(String host, int port, InetAddress local, int localPort) throws IOException {
        return createSocket(host, port);
    }

    @Override
    public Socket createSocket(InetAddress host, int port, InetAddress local, int localPort) throws IOException {
        return createSocket(host, port);
    }

    private String address() {
        return conf.get(ADDRESS_KEY, "127.0.0.1");
    }

    @Override
    public void setConf(Configuration conf) {
        this.conf = conf;
    }

    @Override
    public Configuration getConf() {
        return conf;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof LocalAddressSocketFactory
                && ((LocalAddressSocketFactory) other).address().equals(address());
    }

    @Override
    public int hashCode() {
        return address().hashCode();
    }
}
