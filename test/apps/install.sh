#!/usr/bin/env bash
# Unpacks Debian's packages of real servers and their clients into a cache outside the tree,
# and prints the folder, which is the root of the containers of these tests. Nothing is
# installed on this machine, so no service starts. It takes one argument: "few" for the
# programs that `make test` tries (50 MB), or "all" for those of `make apps` (350 MB). With
# --where as second argument it only prints the folder.
set -euo pipefail

base='base-passwd bash coreutils curl dash grep hostname libc-bin mawk sed'
few="$base nginx-light postgresql-15 postgresql-client-15 redis-server redis-tools"
all="$few amqp-tools default-jre-headless etcd-client etcd-server mariadb-client mariadb-server
	mosquitto mosquitto-clients nghttp2-client nghttp2-server openjdk-17-jre-headless openssh-client
	openssh-server openssl procps python3 python3-aiohttp python3-aiosmtpd python3-grpcio python3-pika
	python3-websockets rabbitmq-server swaks vsftpd zookeeper"

case ${1:-} in
few) packages=$few ;;
all) packages=$all ;;
*)
	echo "usage: $0 few|all [--where]" >&2
	exit 2
	;;
esac
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
folder=$cache/apps-$1-$(cksum <"$0" | cut -d' ' -f1)

if [ "${2:-}" = --where ] || [ -e "$folder" ]; then
	echo "$folder"
	exit 0
fi
mkdir -p "$cache"
# Two test runs at once must not install twice into one folder.
exec 9>"$folder.lock"
flock 9
if [ -e "$folder" ]; then
	echo "$folder"
	exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" != bookworm ]; then
	echo "these packages are those of Debian 12" >&2
	exit 1
fi

echo "unpacking Debian's packages of real applications ($1, once)" >&2
new=$(mktemp -d "$folder.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/archives/partial" "$new/root"
# With an empty list of installed packages, apt-get downloads all that they depend on.
: >"$new/status"
apt=(apt-get -qq -y -o "Dir::State::status=$new/status" -o "Dir::Cache::archives=$new/archives" -o Debug::NoLocking=1
	-o APT::Sandbox::User=root -o APT::Install-Recommends=0)
# shellcheck disable=SC2086 # The lists are words.
"${apt[@]}" --download-only install $packages >&2 || {
	[ "$(id -u)" = 0 ] && apt-get -qq update >&2 && "${apt[@]}" --download-only install $packages >&2
}

root=$new/root
for name in bin lib lib64 sbin; do
	mkdir -p "$root/usr/$name"
	ln -s "usr/$name" "$root/$name"
done
for package in "$new"/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --no-same-owner -C "$root"
done
# What the scripts of the packages would do.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
echo 'app:x:1000:1000:app:/tmp:/bin/sh' >>"$root/etc/passwd"
echo 'app:x:1000:' >>"$root/etc/group"
rm -rf "$root"/usr/share/{doc,icons,locale,man} "$root"/usr/lib/x86_64-linux-gnu/dri
find "$root" -type f \( -perm -4000 -o -perm -2000 \) -exec chmod a-s {} +
mv -T "$root" "$folder"
echo "$folder"
