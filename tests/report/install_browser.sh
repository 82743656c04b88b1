# Installs Debian's Chromium and its driver if the user may. Without them the browser tests are skipped.

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    install="timeout 300 apt-get install --quiet --yes --no-install-recommends chromium chromium-driver"
    if $install >/dev/null 2>&1 || { timeout 120 apt-get update >/dev/null 2>&1 && $install >/dev/null 2>&1; }; then
        exit 0
    fi
fi
echo "Chromium cannot be installed here: the browser tests of reports are skipped (apt install chromium chromium-driver)"
