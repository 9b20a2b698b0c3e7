# Java with ZooKeeper's libraries.
PATH=/usr/lib/jvm/java-17-openjdk-amd64/bin:$PATH
CLASSPATH=
for name in zookeeper zookeeper-jute slf4j-api slf4j-nop metrics-core snappy-java commons-cli commons-io netty-buffer netty-codec \
	netty-common netty-handler netty-resolver netty-transport netty-transport-native-epoll netty-transport-native-unix-common; do
	CLASSPATH=$CLASSPATH:/usr/share/java/$name.jar
done
export CLASSPATH JAVA_TOOL_OPTIONS='-XX:+UseSerialGC -XX:TieredStopAtLevel=1'
