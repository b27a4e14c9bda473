# The commands of CONTRIBUTING.md, for an environment with `pip install -e '.[dev]'`.
.PHONY: test unit lint types docs ci gate mutants

test:
	python -m pytest

unit:
	python -m pytest tests/unit

lint:
	ruff check .
	ruff format --check .
	lint-imports --no-cache
	if command -v luacheck; then \
		scripts=$$(mktemp -d) && luacheck $$(python -m tests.support.joined_scripts "$$scripts") && rm -rf "$$scripts"; \
	else echo "luacheck is not installed; the Lua linter was skipped"; fi

types:
	mypy

docs:
	python -m tests.docs.generate

ci:
	bash .ci/run

gate:
	python -m benchmarks gate

mutants:
	python -m proof.mutants lua --left --keep
	python -m proof.mutants python --left --keep
