# Tells the master to reload and waits until it has a new worker. A signal that comes
# while the master reloads is lost, so it is sent until there is one.
master=$(cat /run/outrigger/haproxy.pid)
workers=/proc/$master/task/$master/children
before=" $(cat "$workers") "
for try in 1 2 3 4 5 6 7 8; do
  kill -USR2 "$master"
  for wait in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    sleep 0.05
    for worker in $(cat "$workers"); do
      case $before in *" $worker "*) ;; *) sleep 0.1; exit 0 ;; esac
    done
  done
done
echo "HAProxy's master has no new worker" >&2
exit 1
