"""Line filter for the Java sources: keep what a release's client has.

//#if 2.4      keep the lines below for releases >= 2.4
//#if <2.0     keep them for releases before 2.0
//#else, //#endif
"""
import subprocess
import sys
from cluster import HERE, LIB, SCRATCH, classpath, vt


def filter_source(text, version):
    v = vt(version)
    out, stack = [], []
    for line in text.splitlines():
        s = line.strip()
        if s.startswith("//#if "):
            a = s[6:].strip()
            stack.append(v < vt(a[1:]) if a.startswith("<") else v >= vt(a))
        elif s == "//#else":
            stack[-1] = not stack[-1]
        elif s == "//#endif":
            stack.pop()
        elif all(stack):
            out.append(line)
            continue
        out.append("")
    return "\n".join(out) + "\n"


def build(source, version):
    out = SCRATCH / "classes" / version
    out.mkdir(parents=True, exist_ok=True)
    src = out / source
    src.write_text(filter_source((HERE / source).read_text(), version))
    r = subprocess.run(["javac", "--release", "8", "-nowarn", "-Xlint:none", "-cp", classpath(version), "-d", str(out), str(src)],
                       capture_output=True, text=True)
    if r.returncode:
        print(r.stdout, r.stderr)
        raise SystemExit(f"{source} does not compile for {version}")
    return out


if __name__ == "__main__":
    for v in sys.argv[2:]:
        build(sys.argv[1], v)
        print("built", sys.argv[1], v)
