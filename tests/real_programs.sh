#!/bin/sh
# Some tests talk to real programs. Install them where we may (root on Debian), else say what is left out.
set -eu
PATH="$PATH:/usr/sbin" # where Debian keeps mosquitto

missing=''
while read -r program package; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $package"
done <<PROGRAMS
mosquitto mosquitto
chromium chromium
prometheus-alertmanager prometheus-alertmanager
openssl openssl
promtool prometheus
systemd-analyze systemd
PROGRAMS
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests that need these Debian packages will be skipped:$missing"
    echo "To run them: install the packages (apt-get install$missing), then make test again."
    exit 0
fi

# A package's service is not wanted, only its programs: Debian asks this file before it starts one.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  one word per package is meant
apt-get install -y -qq --no-install-recommends $missing
