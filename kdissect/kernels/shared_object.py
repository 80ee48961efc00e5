"""All kernels compiled into one shared object: what an installed package runs.

    python -m kdissect.kernels.shared_object [PATH]     (default: beside this module, for the checkout's own use)
    python -m kdissect.kernels.shared_object PATH TARGET [FOLDER]
    python -m kdissect.kernels.shared_object --all FOLDER

The second form is for another system (`kdissect.kernels.targets`), taken from FOLDER where the third form made it from
these sources. The third form compiles once and emits code for all targets: FOLDER/TARGET/compiled.so.

Each declared form of each kernel becomes a function of plain C types that unpacks its arguments (`Signature.pack`),
calls the code which numba made, and stores what it gave. The code is what a checkout runs, by the same pipeline, for
any machine of the kind. It needs nothing from numba, LLVM or Python, only a few functions of the C library. Objects for
the system that runs are linked by its `ld`; where it has none, and for other systems, by the linker that ziglang brings
from the package index.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kdissect.kernels.cache import compiled_sources, digest, kernel_modules
from kdissect.kernels.kernel import KERNELS, LIBRARY, Kernel
from kdissect.kernels.native import PATH, SOURCES, symbol
from kdissect.kernels.object_symbols import undefined_symbols
from kdissect.kernels.targets import TARGETS, Target, own_target, target_named
from kdissect.python_process import start_python

FROM_C = {"memcpy", "memmove", "memset", "pread", "bzero", "__bzero"}
"""What the code may take from the C library, which every process has loaded; the last two are macOS's."""
ZIG = "import runpy\nrunpy.run_module('ziglang', run_name='__main__', alter_sys=True)"
"""Runs ziglang's program as `python -m ziglang` does."""


def linker() -> list[str] | None:
    """The system's linker; None where it has none that is known to work."""
    found = shutil.which("ld") if sys.platform == "linux" else None
    return [found, "--gc-sections", "-s", "-z", "now", "-z", "noexecstack"] if found else None


def all_kernels() -> dict[str, Kernel]:
    """Every kernel of the package, by module and name."""
    for name in kernel_modules():
        importlib.import_module("kdissect." + name.removesuffix(".py").replace("/", "."))
    return {name: known for name, known in sorted(KERNELS.items()) if name.startswith("kdissect.")}


def build(paths: Mapping[Target, Path], kernels: Mapping[str, Kernel]) -> int:
    """Compile kernels and link them for each target into its path; how many functions. Raises RuntimeError where
    something is missing."""
    with tempfile.TemporaryDirectory(prefix="kdissect-kernels-") as folder:
        objects: dict[Target, list[Path]] = {target: [] for target in paths}
        for target, name, code in _objects(kernels, list(paths)):
            objects[target].append(Path(folder) / target.name / f"{name}.o")
            objects[target][-1].parent.mkdir(exist_ok=True)
            objects[target][-1].write_bytes(code)
        for target, path in paths.items():
            made = Path(folder) / target.name / path.name
            _link(objects[target], made, target)
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f"{path.name}.{os.getpid()}")
            shutil.copyfile(made, new)
            new.replace(path)  # a process that runs the old one keeps it
    return len(next(iter(objects.values()))) - 1


def _link(objects: list[Path], library: Path, target: Target) -> None:
    own = target == own_target()
    arguments = ["-shared", "-o", str(library), *map(str, objects)]
    known = linker() if own else None
    if known is not None:
        linking = subprocess.Popen([*known, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    else:
        caches = {name: str(library.parent / "zig") for name in ("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR")}
        options = ["cc", *([] if own else ["-target", target.zig]), *target.flags]
        linking = start_python(
            ZIG, [*options, *arguments], environment=caches, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    with linking:
        said = linking.communicate()[1].decode(errors="replace").strip()
    if linking.returncode:
        raise RuntimeError(f"linking the kernels for {target.name} failed: {said}")


def _objects(kernels: Mapping[str, Kernel], targets: Sequence[Target]) -> Iterator[tuple[Target, str, bytes]]:
    """Object files, by target and name: one for each form of each kernel, one for the names of the sources."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    from kdissect.kernels.jit import compile_form, dispatcher_of

    machines = [(target, _machine(target)) for target in targets]
    for name, kernel in kernels.items():
        for form, signature in enumerate(kernel.signatures):
            made = compile_form(dispatcher_of(kernel.py_func, cache=False), signature)
            called = symbol(name, form)
            texts = [str(llvm.parse_bitcode(made.library._final_module.as_bitcode())), _entry(called, made, signature)]
            for target, machine in machines:
                module, entry = (llvm.parse_assembly(_retargeted(text, target, machine)) for text in texts)
                module.link_in(entry)
                _keep(module, called, machine)
                code = machine.emit_object(module)
                missing = undefined_symbols(code) - FROM_C
                if missing:
                    raise RuntimeError(f"{called} needs {', '.join(sorted(missing))}, which no C library has")
                yield target, called, code
    module = ir.Module(SOURCES)
    names = compiled_sources()
    text = bytearray("\n".join([digest(names), *names]).encode() + b"\0")
    value = ir.Constant(ir.ArrayType(ir.IntType(8), len(text)), text)
    ir.GlobalVariable(module, value.type, SOURCES).initializer = value
    for target, machine in machines:
        yield target, SOURCES, machine.emit_object(llvm.parse_assembly(_retargeted(str(module), target, machine)))


def _machine(target: Target) -> Any:
    """LLVM's code generator for a target."""
    import llvmlite.binding as llvm

    if target == own_target():
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        found = llvm.Target.from_default_triple()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        found = llvm.Target.from_triple(target.triple)
    return found.create_target_machine(cpu=target.processor, opt=2, reloc="pic", codemodel="small")


def _retargeted(text: str, target: Target, machine: Any) -> str:
    """A module's text for another target."""
    if target == own_target():
        return text
    text = re.sub(r"^target triple = .*$", f'target triple = "{target.triple}"', text, flags=re.MULTILINE)
    return re.sub(r"^target datalayout = .*$", f'target datalayout = "{machine.target_data}"', text, flags=re.MULTILINE)


def _keep(module: Any, called: str, machine: Any) -> None:
    """Drop everything that this function does not reach."""
    import llvmlite.binding as llvm
    from llvmlite.binding import Linkage

    for one in (*module.functions, *module.global_variables):
        if not one.is_declaration and one.name != called and not one.name.startswith("llvm."):
            one.linkage = Linkage.internal
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0)))


def _entry(called: str, compiled: Any, signature: Any) -> str:
    """LLVM's text of the function that Python calls: (words of the arguments, words of what it gives) -> status."""
    from llvmlite import ir
    from numba.core import types
    from numba.np.arrayobj import populate_array

    from kdissect.kernels.jit import type_of
    from kdissect.kernels.signature import Array, Number

    context = compiled.target_context
    module = context.codegen().create_library(called).create_ir_module(called)
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.IntType(32), [word.as_pointer(), word.as_pointer()]), called)
    build = ir.IRBuilder(function.append_basic_block())
    given = function.args[1]
    taken = 0

    def next_word() -> Any:
        nonlocal taken
        taken += 1
        return build.load(build.gep(function.args[0], [word(taken - 1)]))

    def value(kind: Any) -> Any:
        known = type_of(kind)
        if isinstance(kind, Number):
            return _number(context, build, known, next_word())
        if not isinstance(kind, Array):
            return context.make_tuple(build, known, [value(one) for one in kind.parts])
        made = context.make_array(known)(context, build)
        element = context.get_data_type(known.dtype)
        size = context.get_abi_sizeof(element)
        data = build.inttoptr(next_word(), element.as_pointer())
        shape = [next_word() for _ in range(kind.dimensions)]
        strides = [word(size)]
        for one in reversed(shape[1:]):
            strides.insert(0, build.mul(strides[0], one))
        populate_array(made, data=data, shape=shape, strides=strides, itemsize=word(size), meminfo=None)
        return made._getvalue()

    arguments = [value(kind) for kind in signature.taken]
    callee = context.declare_function(module, compiled.fndesc)
    result = compiled.signature.return_type
    status, found = context.call_conv.call_function(build, callee, result, compiled.fndesc.argtypes, arguments)
    build.store(build.ptrtoint(status.excinfoptr, word), build.gep(given, [word(0)]))
    parts = (
        [found] if len(signature.given) == 1 else [build.extract_value(found, i) for i in range(len(signature.given))]
    )
    for i, (kind, part) in enumerate(zip(signature.given, parts, strict=True)):
        known = type_of(kind)
        if kind.code == "f8":
            part = build.bitcast(part, word)
        elif known == types.boolean or not known.signed:
            part = build.zext(part, word) if part.type != word else part
        else:
            part = build.sext(part, word) if part.type != word else part
        build.store(part, build.gep(given, [word(i + 1)]))
    build.ret(status.code)
    return str(module)


def _number(context: Any, build: Any, numba_type: Any, word: Any) -> Any:
    """A number from its word."""
    kind = context.get_value_type(numba_type)
    if str(kind) == "double":
        return build.bitcast(word, kind)
    return word if kind == word.type else build.trunc(word, kind)


def main(path: Path, target: Target | None = None, built: Path | None = None) -> None:
    """Compile the package's kernels for a target (None: the system that runs) into `path`, and say what was made. A
    shared object of just these sources, next to this module or in the folder `built`, is used as it is."""
    target = target or own_target()
    ready = built / target.name / PATH.name if built is not None else None
    if ready is not None and ready.exists() and digest(compiled_sources()).encode() in ready.read_bytes():
        shutil.copyfile(ready, path)
    elif LIBRARY is not None and path != PATH and target == own_target():
        shutil.copyfile(LIBRARY.path, path)
    else:
        compile_for({target: path})


def compile_for(paths: Mapping[Target, Path]) -> None:
    """Compile the package's kernels for targets, and say what was made."""
    os.environ.pop("NUMBA_BOUNDSCHECK", None)
    os.environ |= {"NUMBA_CPU_NAME": own_target().processor, "NUMBA_CPU_FEATURES": ""}
    functions = build(paths, all_kernels())
    for path in paths.values():
        sys.stderr.write(f"{functions} functions in {path}, {path.stat().st_size} bytes\n")


def run(arguments: Sequence[str]) -> None:
    """Runs `python -m` with these arguments. Raises SystemExit for wrong ones."""
    if arguments[:1] == ["--all"] and len(arguments) == 2:
        compile_for({target: Path(arguments[1]) / target.name / PATH.name for target in TARGETS.values()})
        return
    if len(arguments) > 3 or arguments[:1] == ["--all"]:
        raise SystemExit(__doc__)
    path, name, made = (*arguments, *[""] * (3 - len(arguments)))
    try:
        target = target_named(name)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    main(Path(path) if path else PATH, target, Path(made) if made else None)


if __name__ == "__main__":
    run(sys.argv[1:])
