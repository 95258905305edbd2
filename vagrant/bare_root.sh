#!/bin/bash
# Commands as they meet a machine on which nothing was installed: a bare Debian 12 in a folder, a clone
# of this checkout in root's home there, and the environment of a login.
#
#   vagrant/bare_root.sh 'vagrant/provision.sh uetemu run allreduce' 'vagrant/provision.sh pytest'
#
# Each argument is a command line, run in the clone (of what is committed); the first that fails ends
# it, with its status.  The folder is removed at the end.  It takes root, debootstrap and apt's lists.
# Only what leads to packages is taken from this machine: apt's mirror and proxies, certificates,
# and the variables named below.

set -euo pipefail

readonly release=bookworm
readonly variables='(https?|no|all)_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|DEFAULT_TIMEOUT)'

fail() {
    printf 'bare_root: %s\n' "$*" >&2
    exit 1
}

((EUID == 0)) || fail "mounting needs root: call this as root"
command -v debootstrap >/dev/null || fail "debootstrap is missing: install Debian's package of that name"
checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
# shellcheck disable=SC2016 # apt's own variables
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' \
    'Component: main' | head -n 1)
[[ $mirror ]] || fail "apt knows no mirror of Debian: run apt-get update first"

root=$(mktemp -d /var/tmp/uetemu-bare.XXXXXX)
# Nothing is mounted there but in a namespace that ends with the command.
trap 'rm -rf --one-file-system "$root"' EXIT
debootstrap --variant=minbase --include=git "$release" "$root" "$mirror" >"$root.log" 2>&1 ||
    fail "debootstrap failed; the reason is at the end of $root.log"
rm "$root.log"
chmod 755 "$root"
touch "$root/etc/uetemu-bare-root"
cp -L /etc/resolv.conf "$root/etc/"
apt-config dump | grep -E '^Acquire::(https?|Check-)' >"$root/etc/apt/apt.conf.d/50machine" || true
mkdir -p "$root/usr/local/share/ca-certificates"
find /usr/local/share/ca-certificates -name '*.crt' \
    -exec cp -t "$root/usr/local/share/ca-certificates" {} + 2>/dev/null || true
git -c safe.directory='*' clone --quiet "$checkout" "$root/root/uetemu"
mapfile -t login < <(env | grep -iE "^($variables)=" || true)
login+=(HOME=/root USER=root LOGNAME=root SHELL=/bin/bash TERM="${TERM:-dumb}")

# The root is a mount point, as on a machine: unlike a chroot, that lets others be made inside.
# shellcheck disable=SC2016 # for the shell inside
readonly enter='
    set -e
    root=$1; shift
    mount --make-rprivate /
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount -t bpf bpf sys/fs/bpf
    mount --rbind /dev dev
    mount -t tmpfs tmpfs dev/shm
    mount -t tmpfs -o mode=755 tmpfs run
    pivot_root . .
    umount --lazy .
    cd /root
    # As process 1 this shell takes the exit status of orphans.
    "$@"
    exit'
for command in "$@"; do
    unshare --mount --pid --fork --kill-child bash -c "$enter" enter "$root" \
        env -i "${login[@]}" bash -lc "cd uetemu && $command"
done
