#!/bin/sh
# Becomes a systemd over a copy of this machine's files that is written to memory only.
#   boot.sh WORK [SOURCE TARGET]...     SOURCE, a directory of this machine, is to be seen at TARGET, and not changed
# machine.py runs it within namespaces of its own. What it must not touch is hidden or read-only before systemd starts.
set -eu
work=$1
shift
root=$work/root

mount -t tmpfs -o mode=755,size=75% specd-test "$work"
mkdir "$work/written" "$work/scratch" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$work/written,workdir=$work/scratch" specd-test "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=755,size=1m dev "$root/dev"
for device in full null random tty urandom zero; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"

while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done

# No unit of this machine is started but those that systemd brings along, less what would look for hardware, or mount
# what is the kernel's and not the machine's.
: >"$root/etc/fstab"
units=$root/etc/systemd/system
mkdir -p "$units"
mount -t tmpfs -o mode=755 units "$units"
for unit in dev-hugepages.mount ldconfig.service network-online.target proc-sys-fs-binfmt_misc.automount \
    sys-fs-fuse-connections.mount sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    systemd-firstboot.service systemd-hwdb-update.service systemd-modules-load.service systemd-udev-trigger.service \
    systemd-udevd.service; do
    ln -s /dev/null "$units/$unit"
done
printf '[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\nAllowIsolate=yes\n' >"$units/tested.target"

mkdir -p "$root/mnt"
cd "$root"
pivot_root . mnt
cd /
umount --lazy /mnt
# Credentials and private mounts reach a service only where mounts are passed on.
mount --make-rshared /
systemd=/usr/lib/systemd/systemd
[ -x "$systemd" ] || systemd=/lib/systemd/systemd
exec env -i container=specd-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    "$systemd" --system --unit=tested.target --log-target=journal --show-status=no
