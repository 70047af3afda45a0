#!/usr/bin/env bash
# A search over two workers that are reached by ssh, one of which is killed on the way.
#
#   scripts/sshd.sh                     (needs Debian's openssh-server and openssh-client)
#
# The server is one of its own on the loopback interface, with a configuration, keys and a port of its own, in a temporary
# folder; nobody's ssh configuration is read. EIGHTFOLD names the binary [default: target/release/eightfold], RECORDS the
# folder for the search's record.
set -euo pipefail
cd "$(dirname "$0")/.."

eightfold=$(realpath "${EIGHTFOLD:-target/release/eightfold}")
server=$(command -v sshd || ls /usr/sbin/sshd 2>/dev/null || true)
if [ -z "$server" ] || ! command -v ssh >/dev/null; then
    echo "there is no sshd or no ssh: apt-get install openssh-server openssh-client" >&2
    exit 2
fi

place=$(mktemp -d /tmp/eightfold-sshd.XXXXXX)
records=$(realpath -m "${RECORDS:-$place/records}")
pid=
finish() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

port=36822
ssh-keygen -q -t ed25519 -N '' -f "$place/host"
ssh-keygen -q -t ed25519 -N '' -f "$place/key"
cp "$place/key.pub" "$place/authorized"
chmod 600 "$place/authorized"
echo "[127.0.0.1]:$port $(cat "$place/host.pub")" >"$place/known"
cat >"$place/sshd_config" <<CONFIG
ListenAddress 127.0.0.1
Port $port
HostKey $place/host
PidFile $place/pid
AuthorizedKeysFile $place/authorized
StrictModes no
AuthenticationMethods publickey
PermitRootLogin prohibit-password
KbdInteractiveAuthentication no
PasswordAuthentication no
UsePAM no
CONFIG
# Where the server's processes lose their rights on Debian.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
"$server" -D -e -f "$place/sshd_config" 2>"$place/sshd.txt" &
pid=$!
ssh="ssh -F none -p $port -i $place/key -o IdentitiesOnly=yes -o UserKnownHostsFile=$place/known -o BatchMode=yes 127.0.0.1"
for _ in $(seq 50); do
    if $ssh true 2>"$place/ssh.txt"; then break; fi
    sleep 0.1
done
$ssh true || { cat "$place/sshd.txt" >&2; exit 1; }
ssh -V

worker="$ssh '$eightfold' worker --threads 1"
"$eightfold" evolve --kernel cpu --shape 1,2,64,16 --restrict simd=portable,exp=poly --budget "${TRIALS:-24} trials" \
    --seed 2 --worker "$worker" --worker "$worker" --no-validation --records "$records" >"$place/search.txt" 2>"$place/notes.txt" &
search=$!
trials() { cat "$records"/*/journal.log 2>/dev/null | grep -c '"trial":{' || true; }
# By the whole command line, so that no shell and no ssh is meant.
workers() { pgrep -x -f "$eightfold worker --threads 1" || true; }
killed=
for _ in $(seq 600); do
    if ! kill -0 $search 2>/dev/null; then break; fi
    if [ -z "$killed" ] && [ "$(trials)" -ge 4 ]; then
        killed=$(workers | head -n 1)
        echo "after $(trials) candidates: kill -9 of one of $(workers | wc -l) workers"
        kill -9 "$killed"
    fi
    sleep 0.05
done
wait $search
sed "s,$place/,," "$place/search.txt"
echo "sessions that the server accepted: $(grep -c 'Accepted publickey' "$place/sshd.txt")"
grep -ho '"kind":"crashed","reason":"[^"]*"' "$records"/*/journal.log || true
if [ -z "$killed" ]; then
    echo "the search ended before a worker could be killed: raise TRIALS" >&2
    exit 1
fi
for _ in $(seq 50); do
    if [ -z "$(workers)" ]; then break; fi
    sleep 0.1
done
echo "workers that are left: $(workers | wc -w)"
if [ "$(trials)" -ne "${TRIALS:-24}" ]; then
    echo "there are $(trials) outcomes instead of ${TRIALS:-24}" >&2
    exit 1
fi
