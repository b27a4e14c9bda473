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
	scripts=$$(mktemp -d) && luacheck $$(python -m tests.support.joined_scripts "$$scripts") && rm -rf "$$scripts"

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
