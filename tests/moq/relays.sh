#!/usr/bin/env bash
# The tests of MOQT with the relays that take minutes to build: moq-relay-ietf (about 8 on two cores) and
# moq-relay (about 20). Arguments go to the test program, such as the name of a test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

relays="$PWD/target/tools/relays"
build="$PWD/target/relays"
installed() { [[ -x "$relays/bin/$1" ]]; }
installed moq-relay-ietf || CARGO_TARGET_DIR="$build" cargo install moq-relay-ietf --version 0.8.0 --locked --root "$relays"
# Its lock file asks for a release that was yanked.
installed moq-relay || CARGO_TARGET_DIR="$build" cargo install moq-relay --version 0.17.10 --root "$relays"
rm -rf "$build"

export ABHYASA_TEST_RELAYS="$relays/bin" ABHYASA_TEST_SLOW=1
cargo test --locked -p abhyasa --test moq -- "$@"
