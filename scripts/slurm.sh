#!/usr/bin/env bash
# A search over two workers that Slurm starts on this machine, one of which is killed on the way.
#
#   scripts/slurm.sh                    (needs root, and Debian's slurm-wlm and munge)
#
# Everything runs on the loopback interface, with a configuration, a key and ports of its own, in a temporary folder.
# EIGHTFOLD names the binary [default: target/release/eightfold], RECORDS the folder for the search's record.
set -euo pipefail
cd "$(dirname "$0")/.."

eightfold=$(realpath "${EIGHTFOLD:-target/release/eightfold}")
for program in slurmctld slurmd srun munged; do
    command -v $program >/dev/null || PATH=$PATH:/usr/sbin
    if ! command -v $program >/dev/null; then
        echo "there is no $program: apt-get install slurm-wlm munge" >&2
        exit 2
    fi
done

# Daemons that drop their rights must reach their files.
place=$(mktemp -d /tmp/eightfold-slurm.XXXXXX)
chmod 755 "$place"
records=$(realpath -m "${RECORDS:-$place/records}")
started=()
finish() {
    scancel --name=eightfold 2>/dev/null || true
    for _ in $(seq 50); do
        if [ -z "$(squeue -h 2>/dev/null)" ]; then break; fi
        sleep 0.1
    done
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$place"
}
trap finish EXIT

mkdir -p "$place/munge" "$place/state" "$place/spool"
dd if=/dev/urandom of="$place/munge/key" bs=1024 count=1 status=none
chmod 600 "$place/munge/key"
chmod 700 "$place/munge"
# A munged as root says that this is unusual, and works.
munged --foreground --force --socket "$place/munge/socket" --key-file "$place/munge/key" --num-threads 2 \
    --pid-file "$place/munge/pid" --seed-file "$place/munge/seed" --log-file "$place/munge/log" 2>"$place/munged.txt" &
started+=($!)

cpus=$(nproc)
cat >"$place/slurm.conf" <<CONFIG
ClusterName=eightfold
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=36817
SlurmdPort=36818
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/linear
PropagateResourceLimits=NONE
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
CONFIG
export SLURM_CONF=$place/slurm.conf

slurmctld -D 2>"$place/slurmctld.txt" &
started+=($!)
slurmd -D -N localhost 2>"$place/slurmd.txt" &
started+=($!)
for _ in $(seq 100); do
    if [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; then break; fi
    sleep 0.2
done
sinfo
srun --version

# The searches' own fault kills what is examined for a candidate; here the engine kills the job itself.
worker="srun --quiet --ntasks=1 --overcommit --job-name=eightfold '$eightfold' worker --threads 1"
"$eightfold" evolve --kernel cpu --shape 1,2,64,16 --restrict simd=portable,exp=poly --budget "${TRIALS:-24} trials" \
    --seed 2 --worker "$worker" --worker "$worker" --no-validation --records "$records" >"$place/search.txt" 2>"$place/notes.txt" &
search=$!
trials() { cat "$records"/*/journal.log 2>/dev/null | grep -c '"trial":{' || true; }
killed=
for _ in $(seq 600); do
    if ! kill -0 $search 2>/dev/null; then break; fi
    if [ -z "$killed" ] && [ "$(trials)" -ge 4 ]; then
        killed=$(squeue -h -n eightfold -o %i | head -n 1)
        echo "after $(trials) candidates: scancel $killed of $(squeue -h -n eightfold -o %i | wc -l) jobs"
        scancel --signal=KILL "$killed" || scancel "$killed"
    fi
    sleep 0.05
done
wait $search
sed "s,$place/,," "$place/search.txt"
echo "jobs that Slurm started: $(sed -n 's/.*JobId=\([0-9]*\).*/\1/p' "$place/slurmctld.txt" "$place/slurmctld.log" 2>/dev/null | sort -u | wc -l)"
grep -ho '"kind":"crashed","reason":"[^"]*"' "$records"/*/journal.log || true
if [ -z "$killed" ]; then
    echo "the search ended before a job could be killed: raise TRIALS" >&2
    exit 1
fi
for _ in $(seq 50); do
    if [ -z "$(squeue -h)" ]; then break; fi
    sleep 0.1
done
echo "jobs that are left: $(squeue -h | wc -l)"
if [ "$(trials)" -ne "${TRIALS:-24}" ]; then
    echo "there are $(trials) outcomes instead of ${TRIALS:-24}" >&2
    exit 1
fi
