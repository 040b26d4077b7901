#!/bin/sh
# Install the wheel and the sdist in dist/, each into an empty virtual environment, and use them: tools/check_dist.sh
# PYTHON is the interpreter, PIP_ARGS are further arguments of pip, e.g. an index with builds of torch for the CPU.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'id,title,description\nP1,Aspirin,a painkiller\nP2,Köln,a city\n' > "$work/drugs.csv"
for package in "$root"/dist/wellread-*.whl "$root"/dist/wellread-*.tar.gz; do
    echo "checking $package" >&2
    "${PYTHON:-python3}" -m venv --clear "$work/venv"
    # shellcheck disable=SC2086
    "$work/venv/bin/pip" install -qq --disable-pip-version-check -c "$root/constraints.txt" ${PIP_ARGS:-} "$package"
    cd "$work" # not the source folder: its `src` must not be what is imported
    run="$work/venv/bin/wellread"
    "$run" --version
    "$run" kb build csv drugs.csv --to "$work/drugs.kb" --replace
    "$run" link --kb "$work/drugs.kb" --model prior --format json "aspirin in Köln" | tee linked.json
    grep -q '"P1"' linked.json && grep -q '"P2"' linked.json
    "$work/venv/bin/python" - <<'EOF'
from importlib.resources import files

import wellread
import wellread.server
from wellread.models.elq.load import PACKAGED

package = files("wellread")
lacking = [
    name
    for name in ("py.typed", "server/page/page.html", "server/docs/docs.html", "text/frequency.safetensors")
    if not package.joinpath(name).is_file()
]
assert not lacking, f"the package lacks {lacking}"
assert (PACKAGED / "model.safetensors").is_file(), "the package lacks the weights of the default linker"
assert "site-packages" in wellread.__file__, wellread.__file__
EOF
done
echo "wheel and sdist install and work" >&2
