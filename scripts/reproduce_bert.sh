#!/usr/bin/env bash
exec bash "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh" bert "$@"
