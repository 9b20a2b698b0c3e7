#!/usr/bin/env bash
# Prints the path of the HAProxy for the tests. If there is none, it installs Debian's
# package, which needs root. With --where it installs nothing.
#
# HAPROXY_VERSION=3.0 or 3.2 chooses one that a later release of Debian has. Nothing is
# installed then: the program and its libraries, the C library too, are unpacked from the
# packages into a cache outside the tree, beside a script that runs the program with them.
# apt-get checks the packages' signatures and checksums.
set -euo pipefail

find_haproxy() {
	if [ -n "${HAPROXY:-}" ]; then
		command -v "$HAPROXY" && return
		echo "HAPROXY is $HAPROXY, which is not a program" >&2
		exit 1
	fi
	command -v haproxy || PATH=/usr/sbin command -v haproxy
}

# Prints where this machine gets Debian's packages from.
mirror() {
	apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n '/^Debian Debian /{s///p;q}'
}

# Unpacks the packages of the release $1 of Debian into the folder $2.
unpack() {
	local uri apt name package
	uri=$(mirror)
	if [ -z "$uri" ] && [ "$(id -u)" = 0 ]; then
		apt-get -qq update >&2 || true
		uri=$(mirror)
	fi
	if [ -z "$uri" ]; then
		echo "apt-get has no list of Debian's packages: run 'apt-get update' as root" >&2
		return 1
	fi
	mkdir -p "$2"/{lists,archives}/partial "$2/root/usr"
	# With an empty list of installed packages, apt-get downloads all that they depend on.
	: >"$2/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $1 main" >"$2/sources.list"
	apt=(apt-get -qq -y -o "Dir::Etc::sourcelist=$2/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$2/lists" -o "Dir::State::status=$2/status" -o "Dir::Cache::archives=$2/archives"
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=1 -o APT::Sandbox::User=root
		-o APT::Install-Recommends=0 -o Acquire::Languages=none -o Acquire::Retries=3)
	"${apt[@]}" update >&2
	"${apt[@]}" --download-only install haproxy >&2
	for name in bin lib lib64 sbin; do
		mkdir -p "$2/root/usr/$name"
		ln -s "usr/$name" "$2/root/$name"
	done
	for package in "$2"/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --no-same-owner -C "$2/root"
	done
}

# Prints the path of HAProxy $1 from the release $2 of Debian.
beside() {
	local cache folder new loader libraries
	cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
	folder=$cache/haproxy-$1-$(cksum <"$0" | cut -d' ' -f1)
	if [ -e "$folder" ]; then
		echo "$folder/haproxy"
		return
	fi
	if [ "$3" = --where ]; then
		return 1
	fi
	if ! command -v apt-get >/dev/null || [ "$(dpkg --print-architecture)" != amd64 ] || [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
		echo "HAProxy $1 is unpacked from Debian's packages for amd64 by Debian's apt-get: set HAPROXY to the path of one" >&2
		return 1
	fi
	mkdir -p "$cache"
	# Two test runs at once must not install twice into one folder.
	exec 9>"$folder.lock"
	flock 9
	if [ -e "$folder" ]; then
		echo "$folder/haproxy"
		return
	fi
	echo "unpacking HAProxy $1 from the packages of Debian's $2 (25 MB, once)" >&2
	new=$(mktemp -d "$folder.new.XXXXXX")
	# shellcheck disable=SC2064 # The variable is local.
	trap "rm -rf '$new'" EXIT
	unpack "$2" "$new"
	mkdir "$new/folder" "$new/folder/lib"
	cp "$new/root/usr/sbin/haproxy" "$new/folder/program"
	loader=$new/root/usr/lib64/ld-linux-x86-64.so.2
	libraries=$new/root/usr/lib/x86_64-linux-gnu
	# The C library opens libgcc_s when a thread ends.
	{
		printf '%s\n' "$loader" "$libraries/libgcc_s.so.1"
		"$loader" --library-path "$libraries" --list "$new/folder/program" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p'
	} | sort -u | xargs cp -L -t "$new/folder/lib"
	cp "$new/root/usr/share/doc/haproxy/copyright" "$new/folder/copyright"
	# The process has the name of the program that the kernel starts, which is the loader.
	mkdir "$new/folder/loader"
	ln "$new/folder/lib/ld-linux-x86-64.so.2" "$new/folder/loader/haproxy"
	# HAProxy runs itself again when it reloads, so its name must be the script's. And its
	# children are its workers, so the script has none.
	cat >"$new/folder/haproxy" <<-'END'
		#!/bin/sh
		exec "${0%/*}/loader/haproxy" --argv0 "$0" --library-path "${0%/*}/lib" "${0%/*}/program" "$@"
	END
	chmod 755 "$new/folder" "$new/folder/haproxy"
	if ! "$new/folder/haproxy" -v | grep "^HAProxy version $1[.]" >&2; then
		echo "Debian's $2 has no HAProxy $1 now: see above, and set HAPROXY to the path of one" >&2
		return 1
	fi
	mv -T "$new/folder" "$folder"
	echo "$folder/haproxy"
}

case ${HAPROXY_VERSION:-} in
'') ;;
3.0)
	beside 3.0 trixie "${1:-}"
	exit
	;;
3.2)
	beside 3.2 sid "${1:-}"
	exit
	;;
*)
	echo "HAPROXY_VERSION is $HAPROXY_VERSION, but the tests know 3.0 and 3.2; without it they take the installed one" >&2
	exit 1
	;;
esac

if find_haproxy; then
	exit 0
fi
if [ "${1:-}" = --where ]; then
	exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "HAProxy is not installed, so its tests are skipped: install the package haproxy, 2.6 or later, or set HAPROXY to the program's path" >&2
	exit 1
fi
echo "installing Debian's haproxy" >&2
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy; } >&2
find_haproxy || {
	echo "the package haproxy contains no program haproxy" >&2
	exit 1
}
