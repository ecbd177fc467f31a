#!/bin/sh
# `start-hdfs namenode|datanode NAMENODE`: one server of an HDFS without passwords, for a network of its own.
# `start-hdfs fs NAMENODE -ls /`: Hadoop's commands for files.
set -eu
role=$1
namenode=$2
settings="-D fs.defaultFS=hdfs://$namenode:8020 -D dfs.namenode.name.dir=/var/lib/hdfs/name
    -D dfs.datanode.data.dir=/var/lib/hdfs/data -D dfs.namenode.fs-limits.min-block-size=0
    -D dfs.namenode.rpc-bind-host=0.0.0.0 -D dfs.namenode.http-bind-host=0.0.0.0
    -D dfs.namenode.http-address=$namenode:9870 -D dfs.permissions.enabled=false
    -D dfs.namenode.datanode.registration.ip-hostname-check=false -D dfs.datanode.hostname=$(hostname)
    -D dfs.client.use.datanode.hostname=true"
run() {
    class=$1
    shift
    # shellcheck disable=SC2086  # several words on purpose
    "$@" java -Xmx192m -XX:+UseSerialGC -cp "/opt/hadoop/classes:/opt/hadoop/lib/*" "$class" $settings $more
}
server=org.apache.hadoop.hdfs.server
case $role in
namenode)
    if [ ! -d /var/lib/hdfs/name/current ]; then
        more="-format -nonInteractive" run $server.namenode.NameNode env
    fi
    more="" run $server.namenode.NameNode exec
    ;;
datanode) more="" run $server.datanode.DataNode exec ;;
fs)
    shift 2
    more="$*" run org.apache.hadoop.fs.FsShell exec
    ;;
*)
    echo "start-hdfs namenode|datanode|fs NAMENODE" >&2
    exit 2
    ;;
esac
