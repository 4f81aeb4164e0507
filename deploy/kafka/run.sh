#!/usr/bin/env bash
# A real Apache Kafka on loopback, in the foreground until Ctrl-C. For one machine and for tests:
# one broker, its data in a temporary folder that is removed at the end. With --secure FOLDER its
# only listener for clients demands a login (SASL) over TLS and a certificate of the client, and
# FOLDER gets what a client needs for it. That broker has an authorizer: beside the user shoal, who
# may do everything, there is one user for each role, who may do what acls.py says.
# The jars are fetched once with Maven (version: pom.xml beside this file) into the user's cache.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
port=9092
secure=
restart=

fail() { echo "make kafka: $*" >&2; exit 2; }

usage() {
  echo "usage: deploy/kafka/run.sh [--port PORT] [--secure FOLDER] [--restart]"
  echo "       (make kafka ARGS=\"--port 9095\")"
  echo "  --secure FOLDER  demand TLS, SASL and a client's certificate; FOLDER gets what clients need"
  echo "  --restart        start the broker again, on its data, when it is killed (SIGKILL)"
}

while (($#)); do
  case $1 in
    --port) (($# > 1)) || fail "--port needs a number"; port=$2; shift 2 ;;
    --port=*) port=${1#--port=}; shift ;;
    --secure) (($# > 1)) && [[ -n $2 ]] || fail "--secure needs a folder"; secure=$2; shift 2 ;;
    --secure=?*) secure=${1#--secure=}; shift ;;
    --restart) restart=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown argument: $1" ;;
  esac
done
[[ $port =~ ^[0-9]{1,5}$ ]] && ((10#$port >= 1024 && 10#$port <= 65534)) ||
  fail "--port: '$port' is not allowed; allowed: a number from 1024 to 65534"
port=$((10#$port))

in_use() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
command -v "$java" >/dev/null || fail "Java 17 or newer is needed: '$java' was not found (Debian: openjdk-17-jre-headless)"
major=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
((${major:-0} >= 17)) || fail "Java 17 or newer is needed; '$java' is version ${major:-unknown}"
in_use "$port" && fail "port $port on 127.0.0.1 is in use; choose another with --port"

version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/pom.xml")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/shoal/kafka
lib=$cache/$version-$(cksum <"$here/pom.xml" | cut -d' ' -f1) # another pom, another folder
if [[ ! -d $lib ]]; then
  command -v mvn >/dev/null || fail "Maven is needed once, to fetch Kafka $version: 'mvn' was not found (Debian: maven)"
  echo "fetching Apache Kafka $version into $lib"
  mkdir -p "$cache"
  fetched=$(mktemp -d "$cache/.fetch.XXXXXX")
  # A fetch that was cut off must not look like a complete one: fetched aside, then renamed.
  mvn -q -B -C -Dstyle.color=never -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$fetched" || {
    rm -rf "$fetched"
    fail "Maven could not fetch Apache Kafka $version (see above)"
  }
  mv -T "$fetched" "$lib" 2>/dev/null || rm -rf "$fetched" # another one was faster
fi

data=$(mktemp -d "${TMPDIR:-/tmp}/shoal-kafka.XXXXXX")
broker=
stop() {
  trap - EXIT
  trap '' INT TERM # a second Ctrl-C must not leave the data behind
  if [[ -n $broker ]]; then
    kill -TERM "$broker" 2>/dev/null || true
    for _ in {1..50}; do
      kill -0 "$broker" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$broker" 2>/dev/null || true
  fi
  rm -rf "$data"
}
trap stop EXIT
trap 'stop; exit 0' INT TERM

listener=PLAINTEXT
format=()
if [[ -n $secure ]]; then
  listener=SASL_SSL
  command -v openssl >/dev/null || fail "openssl is needed with --secure: 'openssl' was not found"
  mkdir -p "$secure" 2>/dev/null && [[ -w $secure ]] || fail "--secure: '$secure' is not a folder that can be written to"
  secure=$(cd "$secure" && pwd)
  umask 077
  password=$(openssl rand -hex 16)
  {
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=shoal test CA" \
      -addext keyUsage=critical,keyCertSign,cRLSign \
      -keyout "$data/ca.key" -out "$secure/ca.pem"
    openssl req -new -newkey rsa:2048 -nodes -subj "/CN=localhost" \
      -keyout "$data/broker.key" -out "$data/broker.csr"
    openssl x509 -req -in "$data/broker.csr" -CA "$secure/ca.pem" -CAkey "$data/ca.key" \
      -CAcreateserial -days 30 -out "$data/broker.crt" \
      -extfile <(printf "%s\n" subjectAltName=DNS:localhost,IP:127.0.0.1 authorityKeyIdentifier=keyid)
    openssl req -new -newkey rsa:2048 -nodes -subj "/CN=shoal" \
      -keyout "$secure/client.key" -out "$data/client.csr"
    openssl x509 -req -in "$data/client.csr" -CA "$secure/ca.pem" -CAkey "$data/ca.key" \
      -CAcreateserial -days 30 -out "$secure/client.pem" \
      -extfile <(printf "%s\n" extendedKeyUsage=clientAuth authorityKeyIdentifier=keyid)
  } 2>"$data/openssl.log" || { cat "$data/openssl.log" >&2; fail "the certificates could not be made (see above)"; }
  cat "$data/broker.key" "$data/broker.crt" >"$data/broker.pem"
  printf '%s\n' "$password" >"$secure/password"
  environment() { # USER PASSWORD_FILE
    cat <<ENVIRONMENT
export SHOAL_KAFKA_PROTOCOL=SASL_SSL
export SHOAL_KAFKA_CA_FILE='$secure/ca.pem'
export SHOAL_KAFKA_CERT_FILE='$secure/client.pem'
export SHOAL_KAFKA_KEY_FILE='$secure/client.key'
export SHOAL_KAFKA_MECHANISM=SCRAM-SHA-512
export SHOAL_KAFKA_USERNAME=$1
export SHOAL_KAFKA_PASSWORD_FILE='$2'
ENVIRONMENT
  }
  environment shoal "$secure/password" >"$secure/environment"
  for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
    format+=(--add-scram "$mechanism=[name=shoal,password=$password]")
  done
  for user in controller windows executor gateway operator; do
    openssl rand -hex 16 >"$secure/password.$user"
    environment "$user" "$secure/password.$user" >"$secure/environment.$user"
    format+=(--add-scram "SCRAM-SHA-512=[name=$user,password=$(cat "$secure/password.$user")]")
  done
fi

# Not from the range of outgoing connections: one of those may hold a port on which nobody listens.
controller_port=$((port + 1))
((controller_port < 32000)) || controller_port=$((20000 + RANDOM % 12000))
while in_use "$controller_port"; do controller_port=$((controller_port + 1)); done

cat >"$data/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$controller_port
listeners=$listener://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=$listener://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller_port
inter.broker.listener.name=$listener
controller.listener.names=CONTROLLER
listener.security.protocol.map=$listener:$listener,CONTROLLER:PLAINTEXT
log.dirs=$data/log
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=1000
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
PROPERTIES
[[ -z $secure ]] || cat >>"$data/server.properties" <<PROPERTIES
ssl.keystore.type=PEM
ssl.keystore.location=$data/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location=$secure/ca.pem
listener.name.sasl_ssl.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:shoal;User:ANONYMOUS
sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="shoal" password="$password" user_shoal="$password";
PROPERTIES
cat >"$data/log4j2.yaml" <<LOGGING
Configuration:
  Appenders:
    Console: {name: err, target: SYSTEM_ERR, PatternLayout: {pattern: "%d{HH:mm:ss} %p %c{1}: %m%n"}}
  Loggers:
    Root: {level: warn, AppenderRef: {ref: err}}
LOGGING

run=("$java" -Xmx512m -XX:+UseSerialGC "-Dlog4j2.configurationFile=$data/log4j2.yaml" -cp "$lib/*")
"${run[@]}" kafka.tools.StorageTool random-uuid >"$data/id" 2>"$data/tool.log" &&
  "${run[@]}" kafka.tools.StorageTool format --standalone -t "$(cat "$data/id")" \
    -c "$data/server.properties" "${format[@]}" >>"$data/tool.log" 2>&1 || {
  cat "$data/tool.log" >&2
  fail "Kafka's storage could not be formatted (see above)"
}

# Should this script be killed outright, the kernel ends the broker too (where it can be asked to).
leash=()
command -v setpriv >/dev/null && setpriv --pdeathsig TERM true 2>/dev/null &&
  leash=(setpriv --pdeathsig TERM)
start() {
  "${leash[@]}" "${run[@]}" kafka.Kafka "$data/server.properties" &
  broker=$!
}
start
for _ in {1..600}; do
  kill -0 "$broker" 2>/dev/null || fail "Kafka ended before it was ready (see above)"
  in_use "$port" && break
  sleep 0.1
done
in_use "$port" || fail "Kafka did not listen on 127.0.0.1:$port within 60 s"
echo "Apache Kafka $version is ready: --broker kafka://127.0.0.1:$port   (Ctrl-C stops it; its data goes with it)"
[[ -z $secure ]] || echo "clients need: source $secure/environment (or environment.ROLE, once acls.py was run)"
while true; do
  wait "$broker" && code=0 || code=$?
  [[ $restart && $code -eq 137 ]] || break
  echo "Kafka was killed; starting it again"
  start
done
broker=
fail "Kafka ended by itself with exit code $code"
