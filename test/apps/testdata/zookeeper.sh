. /apps/java.sh
mkdir /tmp/data
printf '%s\n' tickTime=1000 dataDir=/tmp/data clientPort=2181 admin.enableServer=false 4lw.commands.whitelist=ruok >/tmp/zoo.cfg
exec java -Xmx64m org.apache.zookeeper.server.ZooKeeperServerMain /tmp/zoo.cfg
