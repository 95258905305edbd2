#!/bin/bash
# The one installer of uetemu: for the Vagrant machine, for a bare Debian machine and for CI.
#
#   vagrant/provision.sh                       install what is missing
#   vagrant/provision.sh uetemu run allreduce  ... and then run a command
#
# It calls itself with sudo where its caller is not root.
#
# Everything this script says goes to stderr and to the log; stdout belongs to the command.

set -Eeuo pipefail

readonly caller_path=${PATH:-}
readonly system_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PATH=$system_path # sudo, cron and version managers all differ

readonly venv=/opt/uetemu
readonly stamp=$venv/provisioned
readonly log=/var/log/uetemu-provision.log
readonly lockfile=/run/lock/uetemu-provision.lock
readonly debian='Debian 12 or 13'
readonly python=/usr/bin/python3 # Debian's own: mininet is a module of that one, not of a pyenv's
readonly policy=/usr/sbin/policy-rc.d
readonly policy_mark='# made by uetemu while it installs'
readonly wireshark_defaults=/usr/share/wireshark/init.lua
readonly guard=/run/lock/uetemu-provision.guard # locked as long as services must not start

# Debian's packages for runs and labs, and what each is for.
packages=(
    ca-certificates # pip's trust in its index
    python3         # the interpreter of everything below
    python3-venv    # a home for the Python packages
    mininet         # nodes, links, topologies; its own command mn
    iproute2        # ip, tc, bridge: what a user types inside a node
    iputils-ping    # ping between nodes
    procps          # ps, sysctl
    ethtool         # offloads and counters of ports
    nftables        # filters inside nodes
    frr             # zebra, bgpd and bfdd: the eBGP control plane
    tcpdump         # captures
    wireshark-common # dumpcap and mergecap: captures of many ports in one pcapng
    tshark          # dissection of captures
    bpftool         # loads the switch ASIC program
    gcc             # compiled modules
    libc6-dev       # C's own headers
    libpython3-dev  # and Python's, which these need
)

# What `--with NAME` adds, and what commands add that need it (see `implied`).
readonly names='drawings|compiler|cluster|mpi|torch|tests'
readonly packages_for_drawings=(
    graphviz        # dot: fabrics as SVG, also in reports
)
readonly packages_for_compiler=(
    clang           # a switch ASIC program that was changed, and what zebra preloads with homing=esi
    libbpf-dev      # the headers of that program
)
readonly packages_for_cluster=(
    curl            # an HTTP client of its users
    dnsmasq-base    # DNS and DHCP of its management network
    lldpd           # its LLDP
    openssh-server  # its logins
    rpcbind         # the ports of NFSv3
    nfs-ganesha-vfs # the file system that its machines share
    libnfs-utils    # a client of that
    linuxptp        # its PTP
    nbdkit          # its block devices by NBD
    libnbd-bin      # clients of those
    fio             # a load generator of its users
)
readonly packages_for_mpi=(
    openmpi-bin     # mpirun and its daemon: ranks of one run on several machines
    openssh-client  # by which it reaches the other machines
    python3-mpi4py  # Open MPI from Python
)
# What Python's packages add to it: extras of setup.cfg.
readonly -A extra_for=([cluster]=s3 [torch]=torch [tests]=test)
# PyTorch without CUDA is 200 MB, and with it 3 GB that nothing here uses.
readonly for_gpus='^(nvidia|cuda|triton)([-_]|$)'

# Services that Debian's packages enable, each of a package above.  They run in namespaces of labs
# only: where the package was not there before, the machine's own is kept from starting.
readonly -A service_of=(["frr"]=frr ["chrony"]=chrony ["lldpd"]=lldpd ["openssh-server"]=ssh
    ["rpcbind"]=rpcbind ["nfs-ganesha-vfs"]=nfs-ganesha ["prometheus"]=prometheus
    ["slurmctld"]=slurmctld ["slurmd"]=slurmd ["munge"]=munge)

# The tests need all of that and more.  Debian's own kernel in a virtual machine has what the running
# kernel may lack: it is unpacked, never installed, so that this machine goes on booting its own.
packages_for_tests=(
    shellcheck      # reads this script
    lua5.4          # luac: the dissector's syntax
    debootstrap     # a bare root, on which README's commands are tried
)
[[ $HOSTTYPE != x86_64 ]] || packages_for_tests+=(
    qemu-system-x86 # the machine, emulated in software
    busybox-static  # its first process
    kmod            # its modules
    xz-utils        # which are compressed on Debian 13
    rdma-core       # names and rules of RDMA devices: Soft-RoCE, which RoCEv2 is tested against
    ibverbs-providers # its userspace driver
    python3-pyverbs # verbs, for the peer in that machine
    chrony          # NTP of a cluster; on a machine of yours it would replace the clock's own
    nvme-cli        # Linux's own NVMe/TCP host, against uetemu's target
    chromium        # a browser without a screen, which opens reports
    prometheus      # collects metrics; in a cluster it runs as a service of the lab
    slurmctld       # Slurm, whose srun starts ranks: its controller
    slurmd          # its daemon on each machine
    munge           # which its packages demand
    libpmix-dev     # libpmix.so, under the name that srun --mpi=pmix looks for
)
readonly packages_for_tests
# MB of Python packages, by extra, and of the kernel; MB that a slow machine installs in a minute.
readonly -A python_fetched=([uetemu]=62 [compiled]=18 [s3]=20 [torch]=200 [test]=30)
readonly -A python_taken=([uetemu]=250 [compiled]=45 [s3]=90 [torch]=850 [test]=150)
readonly kernel_fetched=70 kernel_taken=110 mb_a_minute=500 compiling_minutes=2
readonly stock_kernel=/var/cache/uetemu/stock-kernel

usage() {
    cat <<END
Usage: vagrant/provision.sh [--with NAME,...] [COMMAND [ARGUMENT...]]

Installs what uetemu needs on $debian, then runs COMMAND with uetemu's Python first on PATH,
in the directory it was called from.  Without COMMAND it only installs.  When everything is in
place already, the check takes a fraction of a second.  It needs root: it calls sudo if it is not.

  vagrant/provision.sh uetemu run allreduce
  vagrant/provision.sh pytest
  vagrant/provision.sh bash          a shell with uetemu on PATH
  vagrant/provision.sh --check       exit status 0 if all is in place; installs nothing
  vagrant/provision.sh --with mpi    also what ranks on several machines need

pytest that is called from outside the checkout, and not on files found there, runs in the checkout.

What is installed: Debian packages (${packages[*]})
and a Python environment in $venv, and modules that it compiles, once for each version.
No service is enabled or started.
With NAME also these, which the commands beside it bring by themselves:
  drawings     ${packages_for_drawings[*]} (uetemu graph, report, top, run --report)
  compiler     ${packages_for_compiler[*]} (homing=esi)
  cluster      ${packages_for_cluster[*]}, moto
               (uetemu up cluster, cluster, services)
  mpi          ${packages_for_mpi[*]} (mpirun, srun)
  torch        PyTorch's CPU build (uetemu torchrun)
  tests        all of these but torch, ${packages_for_tests[*]},
               on x86-64 Debian's kernel, unpacked in $stock_kernel (pytest)
Messages go to stderr, details to $log.
END
}

# The names of what the command "$@" needs beyond the main job.
implied() {
    case " $* " in
    ' pytest '* | ' ruff '* | ' mypy '* | ' lint-imports '* | ' python -m '*) echo tests ;;
    ' mpirun '* | ' srun '*) echo mpi ;;
    esac
    case " $* " in
    *' up cluster'* | *' uetemu cluster '* | *' services '* | *' --services'*) echo cluster ;;
    esac
    case " $* " in
    *' graph '* | *' report '* | *' --report '* | *' top '*) echo drawings ;;
    esac
    [[ " $* " != *homing=esi* ]] || echo compiler
    [[ " $* " != *' uetemu torchrun '* ]] || echo torch
}

say() {
    printf 'provision: %s\n' "$*" >&2
}

fail() {
    trap - ERR
    say "$*"
    exit 1
}

# No command fails without a word, whether its failure was thought of or not.
unforeseen() {
    local status=$1 line=$2 command=$3
    fail "line $line of this script failed with status $status: $command;" \
        "the end of $log may say why, and a second call goes on from here"
}

# --- is there anything to do? -----------------------------------------------------------------

missing_packages() {
    local name state
    declare -A installed=()
    while read -r name state; do
        [[ $state == ii* ]] && installed[$name]=1
    done < <(dpkg-query --show --showformat '${Package} ${db:Status-Abbrev}\n' "${packages[@]}" 2>/dev/null ||
        true) # it fails for those it does not know
    for name in "${packages[@]}"; do
        [[ -v installed[$name] ]] || printf '%s\n' "$name"
    done
}

# What the environment in $venv was made from; a change of any of it makes it anew.
fingerprint() {
    printf '%s\n' "$checkout"
    readlink -f "$python"
    cat "$checkout/vagrant/provision.sh" "$constraints" "$checkout/setup.cfg" \
        "$checkout/pyproject.toml"
}

# python_packages_in_place EXTRA...
python_packages_in_place() {
    [[ -x $venv/bin/uetemu ]] && "$venv/bin/python" -I - "$@" <<'END' >>"$log" 2>&1
import re
import sys
from importlib.metadata import distribution

for requirement in distribution("uetemu").requires or ():
    extra = re.search(r"""extra == ['"](\w+)['"]""", requirement)
    if extra is None or extra[1] in sys.argv[1:]:
        distribution(re.match(r"[\w.-]+", requirement).group())
END
}

# The extras that $venv has, if it was made from what is here.
present_extras() {
    [[ -r $stamp && $(head -n 1 "$stamp") == "$(fingerprint | sha256sum)" ]] && tail -n +2 "$stamp"
}

environment_in_place() {
    local present extra
    present=$(present_extras) || return
    for extra in "${extras[@]}"; do
        grep -qx "$extra" <<<"$present" || return
    done
    python_packages_in_place "${extras[@]}"
}

stock_kernel_in_place() {
    [[ -z $for_machine ]] || {
        grep -qs '/rdma_rxe[.]ko' "$stock_kernel"/lib/modules/*/modules.dep &&
            grep -qs '/nvmet-tcp[.]ko' "$stock_kernel"/lib/modules/*/modules.dep
    }
}

# Modules are compiled as they are committed: whoever is changing them is not kept waiting.
modules_in_place() {
    local status=0
    [[ ${UETEMU_PURE:-0} != 1 ]] || return 0
    "$venv/bin/python" -I -m emulator.compiled --check >>"$log" 2>&1 && return
    git -c safe.directory="$checkout" -C "$checkout" diff --quiet HEAD -- '*.py' \
        >>"$log" 2>&1 || status=$?
    ((status == 1))
}

in_place() {
    [[ -z $(missing_packages) ]] && environment_in_place && modules_in_place && stock_kernel_in_place
}

# --- the steps --------------------------------------------------------------------------------

painter=
made_policy=
guarding=

tidy() {
    stop_painting
    if [[ -n $made_policy ]]; then
        rm -f "$policy"
        exec {guarding}>&-
        made_policy=
    fi
}

# apt-get inherits the lock and goes on if this script is killed; when both have ended, the file
# forbids nothing any more.
forbid_services() {
    exec {guarding}>>"$guard"
    flock --shared "$guarding"
    made_policy=1
    printf '#!/bin/sh\n%s; it forbids nothing afterwards, and may be deleted then\n%s\n%s\n' \
        "$policy_mark" "flock --nonblock $guard true && exit 0" 'exit 101' >"$policy"
    chmod 755 "$policy"
}

# A call that was killed leaves the file that forbids services, which then forbids nothing.
drop_expired_policy() {
    if grep -qs "$policy_mark" "$policy" && flock --nonblock "$guard" true; then
        rm -f "$policy"
    fi
}

stop_painting() {
    if [[ -n $painter ]]; then
        kill "$painter" 2>/dev/null || true
        wait "$painter" 2>/dev/null || true
        painter=
        printf '\r\033[K' >&2
    fi
}

# One line on a terminal: which step, for how long, and the last line of the log.
paint() {
    local start=$SECONDS columns last
    columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2 || true)
    [[ ${columns:-0} -ge 40 ]] || columns=80
    while sleep 0.5; do
        last=$(tail -n 1 "$log" 2>/dev/null | tr -cd '[:print:]')
        printf '\r\033[K%.*s' "$((columns - 1))" "  $((SECONDS - start)) s  $last" >&2
    done
}

# step TEXT COMMAND...: run with its output in the log; on failure say so in a sentence and stop.
step() {
    local text=$1 ok=1
    shift
    say "$text"
    printf '\n=== %s  %s\n' "$(date -u +%FT%TZ)" "$text" >>"$log"
    if [[ -t 2 ]]; then
        paint {lock}>&- &
        painter=$!
    fi
    # The lock must not live on in anything that an installed package might start.
    "$@" >>"$log" 2>&1 </dev/null {lock}>&- || ok=
    stop_painting
    if [[ -z $ok ]]; then
        tail -n 400 "$log" | grep -E '^(E:|ERROR|.*[Ee]rror:)' | tail -n 3 | sed 's/^/    /' >&2 || true
        fail "this step failed: $text; the whole story is at the end of $log," \
            "and a second call goes on from here"
    fi
}

apt_get() {
    apt-get --yes --quiet --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"
}

# The package lists have a lock that apt-get itself does not wait for: a new machine's own daily
# update may hold it for a minute.
apt_update() {
    local attempt
    for attempt in {1..24}; do
        apt_get -o APT::Update::Error-Mode=any update && return
        ((attempt < 3)) || tail -n 5 "$log" | grep -q 'lock' || return
        sleep 5
    done
    return 1
}

have_package_lists() {
    [[ -n $(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -print -quit 2>/dev/null) ]]
}

# Runs under `step`, where `set -e` does not count.
install_packages() {
    # Debian asks whether ordinary users may capture; that is for the machine's owner to say.  Where
    # the package is installed already, he has said so.
    if [[ " $* " == *" wireshark-common "* ]]; then
        printf 'wireshark-common wireshark-common/install-setuid boolean false\n' |
            debconf-set-selections || return
    fi
    dpkg --configure --pending || return # finishes what an interrupted call left
    # Old lists name files that the archive has replaced.
    apt_get install "$@" || { apt_update && apt_get install "$@"; }
}

# disable_services NAME...: none of them starts with the machine.
disable_services() {
    local service
    for service in "$@"; do
        rm -f "/etc/systemd/system/multi-user.target.wants/$service.service" \
            "/etc/systemd/system/sockets.target.wants/$service.socket"
        if [[ -e /etc/init.d/$service ]]; then
            update-rc.d "$service" disable || return # without systemd; Debian 13 has no such file
        fi
    done
    if command -v systemctl; then
        systemctl daemon-reload || true # none is running in a container
    fi
}

# Wireshark 4.4, which Debian 13 has, comes without the file that lets root run Lua, as Debian 12's
# does: without it root's tshark knows no dissector of ours.
let_root_run_lua() {
    local folder
    [[ ! -e $wireshark_defaults ]] || return 0
    folder=$(tshark -G folders | sed -n 's/^Global Lua Plugins:[[:space:]]*//p')
    [[ -n $folder ]] || { printf 'E: tshark runs no Lua\n'; return 1; }
    [[ ! -e $folder/init.lua ]] || return 0
    mkdir -p "$folder" || return
    printf 'run_user_scripts_when_superuser = true\n' >"$folder/init.lua"
}

# How many packages the packages "$@" come to, MB to fetch and MB on disk, as apt says.
debian_sizes() {
    { LC_ALL=C apt-get --no-install-recommends --assume-no install "$@" 2>/dev/null || true; } | awk '
        function mb(number, unit) {
            gsub(",", "", number)
            return unit ~ /^G/ ? number * 1000 : unit ~ /^M/ ? number : unit ~ /^k/ ? number / 1000 : 0
        }
        / newly installed/ { packages = $3 }
        /^Need to get/ { fetched = mb($4, $5) }
        /^After this operation/ { taken = mb($4, $5) }
        END { printf "%d %d %d\n", packages, fetched, taken }'
}

# announce PACKAGE...: what is missing, how large that is, and how long it takes.
announce() {
    local parts=() what=() list number fetched=0 taken=0 minutes part
    if (($#)); then
        read -r number fetched taken < <(debian_sizes "$@")
        what+=("$number Debian packages")
    fi
    environment_in_place || parts=(uetemu "${extras[@]}")
    for part in "${parts[@]}"; do
        python_packages_in_place "$part" && continue # made anew of what is there
        ((fetched += ${python_fetched[$part]-0})) || true
        ((taken += ${python_taken[$part]-0})) || true
    done
    ((! ${#parts[@]})) || what+=("Python packages")
    if ! stock_kernel_in_place; then
        what+=("Debian's kernel")
        ((fetched += kernel_fetched, taken += kernel_taken))
    fi
    minutes=$(((taken + mb_a_minute - 1) / mb_a_minute))
    if ! modules_in_place; then
        what+=("compiled modules")
        ((minutes += compiling_minutes, taken += 10))
    fi
    printf -v list '%s, ' "${what[@]}"
    say "to be installed: ${list%, } ($fetched MB to fetch, $taken MB on disk);" \
        "that takes about $minutes min beside fetching"
}

install_missing_packages() {
    local missing=("$@") package unwanted=()
    ((${#missing[@]})) || return 0
    for package in "${missing[@]}"; do
        [[ -z ${service_of[$package]:-} ]] || unwanted+=("${service_of[$package]}")
    done
    # Fabrics run daemons of their own in their namespaces; the machine's own must not start.
    if [[ ! -e $policy ]] || grep -q "$policy_mark" "$policy"; then
        forbid_services
    fi
    step "installing Debian packages: ${missing[*]}" install_packages "${missing[@]}"
    ((! ${#unwanted[@]})) ||
        step "keeping services from starting: ${unwanted[*]}" disable_services "${unwanted[@]}"
    [[ " ${missing[*]} " != *" tshark "* ]] || step "letting root's tshark run Lua" let_root_run_lua
    tidy
}

# linux-image-amd64 is an empty package that depends on the newest kernel's.
unpack_stock_kernel() {
    local work=$stock_kernel.new image release
    rm -rf "$work" && mkdir -p "$work/package" || return
    image=$(apt-cache depends --important linux-image-amd64 |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [[ -n $image ]] || { printf 'E: no kernel package is known\n'; return 1; }
    (cd "$work/package" && apt_get -o APT::Sandbox::User=root download "$image") || return
    # Not the drivers of hardware that the machine does not have: three quarters of it.  Debian 13
    # has modules below /usr, and compressed, which busybox does not load.
    dpkg-deb --fsys-tarfile "$work"/package/*.deb |
        tar --extract --directory "$work" --transform 's#^[.]/usr/lib/#./lib/#' --wildcards \
            --exclude '*/drivers/net/ethernet' --exclude '*/drivers/net/wireless' \
            './boot/vmlinuz-*' './*lib/modules/*/modules.*' \
            './*lib/modules/*/kernel/'{arch,block,crypto,fs,lib,net} \
            './*lib/modules/*/kernel/drivers/'{infiniband/core,infiniband/sw,net,nvme,virtio} ||
        return
    rm -rf "$work/package"
    find "$work/lib/modules" -name '*.ko.xz' -exec xz --decompress {} + || return
    for release in "$work"/lib/modules/*; do
        depmod --basedir "$work" "${release##*/}" || return
    done
    rm -rf "$stock_kernel" && mv "$work" "$stock_kernel"
}

# What PyTorch would bring is asked for before anything is fetched.
refuse_packages_for_gpus() {
    local report found
    report=$(mktemp)
    step "asking what PyTorch's CPU build needs" \
        "$venv/bin/python" -m pip --no-input --disable-pip-version-check --quiet install \
        --dry-run --report "$report" --constraint "$constraints" torch
    found=$("$venv/bin/python" -I - "$report" "$for_gpus" <<'END'
import json
import re
import sys

with open(sys.argv[1]) as report:
    names = [one["metadata"]["name"] for one in json.load(report)["install"]]
print(next((name for name in names if re.search(sys.argv[2], name)), ""))
END
    )
    rm -f "$report"
    [[ -z $found ]] ||
        fail "the PyTorch that pip finds here is for GPUs and brings $found: let pip's configuration" \
            "name an index that has PyTorch's CPU build, then call this again"
}

make_environment() {
    local all=("${extras[@]}") present list
    if present=$(present_extras); then
        mapfile -t all < <(printf '%s\n' "$present" "${extras[@]}" | sort -u)
    fi
    rm -f "$stamp"
    if ! "$venv/bin/python" -I -c 'import pip' >>"$log" 2>&1 ||
        [[ $("$venv/bin/python" --version) != "$("$python" --version)" ]]; then
        step "making a Python environment in $venv" \
            "$python" -m venv --clear --system-site-packages "$venv"
    fi
    [[ " ${all[*]} " != *' torch '* ]] || refuse_packages_for_gpus
    list=$(IFS=,; printf '%s' "${all[*]}")
    step "installing uetemu and its Python packages ($list)" \
        "$venv/bin/python" -m pip --no-input --disable-pip-version-check install \
        --constraint "$constraints" --editable "${checkout}[$list]"
    # Not root's: its owner may want to install the checkout elsewhere too.
    chown -R --reference "$checkout" "$checkout"/*.egg-info
    python_packages_in_place "${all[@]}" ||
        fail "uetemu does not run in $venv; the reason is at the end of $log"
    { fingerprint | sha256sum && printf '%s\n' "${all[@]}"; } >"$stamp"
}

# Runs without compiled modules come to the same results.
compile_modules() {
    "$venv/bin/python" -I -m emulator.compiled || return 0
    chown -R --reference "$checkout" "$checkout/emulator/compiled/build"
}

prepare() {
    umask 022
    export PATH # it may not have been in the environment at all
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    unset PYTHONHOME PYTHONPATH
}

provision() {
    trap 'unforeseen "$?" "$LINENO" "$BASH_COMMAND"' ERR
    prepare
    command -v apt-get >/dev/null ||
        fail "there is no apt-get here: this script installs on $debian, elsewhere use vagrant/Vagrantfile"
    mkdir -p "${lockfile%/*}"
    exec {lock}>>"$lockfile"
    if ! flock --nonblock "$lock"; then
        say "another call is installing; waiting for it"
        flock "$lock"
    fi
    drop_expired_policy
    if ! in_place; then
        trap tidy EXIT
        local start=$SECONDS missing
        mapfile -t missing < <(missing_packages)
        if ((${#missing[@]})) || ! stock_kernel_in_place; then
            have_package_lists || step "reading Debian's package lists" apt_update
        fi
        announce "${missing[@]}"
        install_missing_packages "${missing[@]}"
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
            fail "$python is older than Python 3.11, which $debian has: use that, or vagrant/Vagrantfile"
        environment_in_place || make_environment
        if ! modules_in_place; then
            step "compiling the modules that runs spend most of their time in" compile_modules
            modules_in_place || say "$(tail -n 1 "$log")"
        fi
        if ! stock_kernel_in_place; then
            step "unpacking Debian's kernel for the tests" unpack_stock_kernel
        fi
        say "ready after $((SECONDS - start)) s"
        trap - EXIT
    fi
    exec {lock}>&-
}

# pytest finds the checkout's tests by itself only from inside the checkout.
go_where_pytest_finds_tests() {
    local argument
    [[ $PWD/ == "$checkout"/* ]] && return
    for argument in "${@:2}"; do
        [[ $argument != -* && -e ${argument%%::*} ]] && return
    done
    cd "$checkout"
}

# --- the call ---------------------------------------------------------------------------------

readonly call=("$@")
check=
with=
while (($#)); do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --check)
        check=1
        ;;
    --with)
        with=${2-}
        [[ $with =~ ^($names)(,($names))*$ ]] ||
            fail "--with takes names out of ${names//|/, }, with commas between"
        shift
        ;;
    -*)
        fail "there is no option $1: give a command to run, or --help"
        ;;
    *) break ;;
    esac
    shift
done

if ((EUID != 0)); then
    command -v sudo >/dev/null ||
        fail "installing and building namespaces need root, and there is no sudo here: call this as root"
    exec sudo -- bash "$0" "${call[@]}"
fi

checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly checkout
readonly constraints=$checkout/vagrant/constraints.txt # the versions that were tested

extras=(tensorboard compiled)
for_machine=
declare -A asked=()
for name in ${with//,/ } $(implied "$@"); do
    asked[$name]=1
done
for name in ${names//|/ }; do
    [[ -v asked[$name] || (-v asked[tests] && $name != torch) ]] || continue
    if [[ -v packages_for_$name ]]; then
        declare -n more=packages_for_$name
        packages+=("${more[@]}")
    fi
    [[ ! -v extra_for[$name] ]] || extras+=("${extra_for[$name]}")
    [[ $name != tests || $HOSTTYPE != x86_64 ]] || for_machine=1
done
readonly extras for_machine packages

if [[ $check ]]; then
    (prepare && in_place) && exit
    fail "not all is in place: run $0${with:+ --with $with}"
fi

# In a subshell: the umask and environment of installing are not for the command.
(provision)

if (($#)); then
    [[ $1 == pytest ]] && go_where_pytest_finds_tests "$@"
    export PATH=$venv/bin:${caller_path:+$caller_path:}$system_path VIRTUAL_ENV=$venv
    exec "$@"
fi
