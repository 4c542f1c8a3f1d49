# completion.sh PREFIX WORDS...: prints bash's completions of the last word on a command line of
# `lockstep`.
source "$1/share/bash-completion/completions/lockstep"
COMP_WORDS=("$1/bin/lockstep" "${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_lockstep
echo "${COMPREPLY[@]}"
