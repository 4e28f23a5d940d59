//! A kernel's text, written line by line.

use std::ffi::CString;
use std::fmt::Write;

/// A register's name.
pub(crate) type Reg = String;

/// The body of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Text {
    body: String,
    /// Registers of 1, 16, 32 and 64 bits.
    counts: [usize; 4],
    labels: usize,
}

/// Their names, and types.
const NAMES: [(&str, &str); 4] = [("p", "pred"), ("h", "b16"), ("r", "b32"), ("d", "b64")];

impl Text {
    fn make(&mut self, kind: usize) -> Reg {
        let n = self.counts[kind];
        self.counts[kind] += 1;
        format!("%{}{n}", NAMES[kind].0)
    }

    /// A predicate.
    pub(crate) fn p(&mut self) -> Reg {
        self.make(0)
    }

    /// One of 16 bits.
    pub(crate) fn h(&mut self) -> Reg {
        self.make(1)
    }

    /// One of 32 bits.
    pub(crate) fn r(&mut self) -> Reg {
        self.make(2)
    }

    /// One of 64 bits.
    pub(crate) fn d(&mut self) -> Reg {
        self.make(3)
    }

    /// One of 32 or 64 bits, for a number of that many bytes.
    pub(crate) fn sized(&mut self, bytes: u32) -> Reg {
        if bytes == 8 { self.d() } else { self.r() }
    }

    /// A label, not yet placed.
    pub(crate) fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    /// Places a label.
    pub(crate) fn place(&mut self, label: &str) {
        let _ = writeln!(self.body, "{label}:");
    }

    /// An instruction.
    pub(crate) fn put(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.body, "    {};", line.as_ref());
    }

    /// An instruction whose result is in a new register of 32 bits.
    pub(crate) fn r_of(&mut self, name: &str, operands: impl AsRef<str>) -> Reg {
        let to = self.r();
        self.put(format!("{name} {to}, {}", operands.as_ref()));
        to
    }

    /// The same of 64 bits.
    pub(crate) fn d_of(&mut self, name: &str, operands: impl AsRef<str>) -> Reg {
        let to = self.d();
        self.put(format!("{name} {to}, {}", operands.as_ref()));
        to
    }

    /// The same of a predicate.
    pub(crate) fn p_of(&mut self, name: &str, operands: impl AsRef<str>) -> Reg {
        let to = self.p();
        self.put(format!("{name} {to}, {}", operands.as_ref()));
        to
    }

    /// Loads the parameters, all of 64 bits.
    pub(crate) fn parameters<const N: usize>(&mut self, names: [&str; N]) -> [Reg; N] {
        names.map(|name| self.d_of("ld.param.u64", format!("[{name}]")))
    }

    /// The number of the thread in the grid, and how many threads the grid has.
    pub(crate) fn grid(&mut self) -> (Reg, Reg) {
        let [thread, block, threads, blocks] =
            ["%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x"].map(|s| self.r_of("mov.u32", s));
        let before = self.d_of("mul.wide.u32", format!("{block}, {threads}"));
        let thread = self.d_of("cvt.u64.u32", thread);
        let number = self.d_of("add.u64", format!("{before}, {thread}"));
        (number, self.d_of("mul.wide.u32", format!("{blocks}, {threads}")))
    }

    /// The whole module, for every driver since CUDA 9.0 and every device since Maxwell.
    pub(crate) fn end(self, name: &str, parameters: &[&str]) -> CString {
        self.end_for("sm_50", name, parameters)
    }

    /// The same, for devices of that architecture and later ones.
    pub(crate) fn end_for(self, target: &str, name: &str, parameters: &[&str]) -> CString {
        let mut all = format!(".version 6.0\n.target {target}\n.address_size 64\n\n");
        let list: Vec<String> = parameters.iter().map(|p| format!(".param .u64 {p}")).collect();
        let _ = writeln!(all, ".visible .entry {name}({})\n{{", list.join(", "));
        for (count, (name, ty)) in self.counts.iter().zip(NAMES) {
            if *count > 0 {
                let _ = writeln!(all, "    .reg .{ty} %{name}<{count}>;");
            }
        }
        let _ = writeln!(all, "{}}}", self.body);
        // A text without NUL is what it is made of.
        CString::new(all).unwrap_or_default()
    }
}
