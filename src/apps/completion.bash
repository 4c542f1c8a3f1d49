# Bash completion of `lockstep`: completes the commands and options in --help, which runs once per command and shell.
declare -A _lockstep_known

# Sets `help` to the output of the command's --help. A subshell would lose the variable.
_lockstep_ask() {
  local key="$*"
  [ -n "${_lockstep_known[$key]}" ] || _lockstep_known[$key]="$("$@" --help 2>/dev/null)"
  help="${_lockstep_known[$key]}"
}

# Prints the words that may follow the command whose help is in `help`. They are in lines such as
# "  run      start ...", or in the first line, as in "train gpt|llama|moe|mnist|cifar|mlp".
_lockstep_commands() {
  sed -n -e '/^Options:/q' -e 's/^  \([a-z][a-z-]*\)  .*/\1/p' \
    -e '1s/^Usage: lockstep [a-z]* \([a-z][a-z|]*\) .*/\1/p' <<<"$help" | tr '|' '\n'
}

_lockstep() {
  local word="${COMP_WORDS[COMP_CWORD]}" command=("${COMP_WORDS[0]}") at=1 help offered=
  _lockstep_ask "${command[@]}"
  while [ "$at" -lt "$COMP_CWORD" ] && [ "$at" -le 2 ]; do
    _lockstep_commands | grep -qxF -- "${COMP_WORDS[at]}" || break
    command+=("${COMP_WORDS[at]}")
    at=$((at + 1))
    _lockstep_ask "${command[@]}"
  done
  if [[ $word == -* ]]; then
    offered="$(grep -oE -- '(^| )--[a-z][a-z0-9-]*' <<<"$help" | sort -u)"
  elif [ "$at" -eq "$COMP_CWORD" ] && [ "$at" -le 2 ]; then
    offered="$(_lockstep_commands)"
  fi
  mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")
}

complete -o default -o bashdefault -F _lockstep lockstep
