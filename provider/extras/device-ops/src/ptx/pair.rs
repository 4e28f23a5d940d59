//! The kernel by which two devices reduce together.

use std::ffi::CString;

use super::reduce::{Access, ReduceKernel};
use super::text::{Reg, Text};
use crate::types::{Op, Type};

/// Bytes of a block's words, and of the line before them, with how many blocks of this kernel have ended.
pub(crate) const LINE: u64 = 128;
/// Words of a block: how many pieces have come from the peer, and how many had when the last kernel ended.
const ARRIVED: u64 = 0;
const BEFORE: u64 = 8;
/// Words in host memory: what ends all waits, and the number of the last kernel that has ended.
pub(crate) const STOP: usize = 0;
pub(crate) const DONE: usize = 64;
/// How often a word of the device's is read before the host's that ends the wait.
const POLLS: u64 = 64;
/// How many pieces are sent before the first one is waited for.
pub(crate) const AHEAD: u64 = 1;
/// Slots of a block, and bytes of one. When the piece has come that was sent so many steps ago, the peer has
/// taken the one that came before it by as many.
pub(crate) const DEPTH: u64 = 2 * AHEAD;
pub(crate) const SLOT: u64 = 1 << 16;
/// Groups of 16 bytes that a thread has under way.
const TOGETHER: u32 = 4;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PairKernel {
    pub(crate) op: Op,
    pub(crate) ty: Type,
    pub(crate) access: Access,
    /// Whether this side's operand is the first one.
    pub(crate) is_first: bool,
}

const PARAMETERS: [&str; 11] =
    ["to", "from", "sent", "words", "slots", "theirs", "there", "count", "piece", "host", "number"];

/// What all steps of a block have.
struct Block {
    leads: Reg,
    thread: Reg,
    threads: Reg,
    block: Reg,
    blocks: Reg,
    /// Its words here, and those of the same block there.
    words: Reg,
    theirs: Reg,
    host: Reg,
    /// Where its slots begin.
    place: Reg,
    before: Reg,
}

impl PairKernel {
    pub(crate) fn name(self) -> String {
        let side = if self.is_first { "first" } else { "second" };
        format!("strait_pair_{side}_{:?}_{:?}_{:?}", self.op, self.ty, self.access).to_lowercase()
    }

    /// The module. Parameters: where the results go, the operands, what is sent, this side's words and slots,
    /// the peer's, the number of elements, and of those in a piece, the host's words, and this kernel's
    /// number.
    /// A block has every so many-th piece. In a step it waits for the one that the peer sent `AHEAD` steps
    /// before, sends one, and reduces the other. All threads have sent a piece before its results are
    /// stored: these may be at the same addresses. A fence is between what the step has done and the word
    /// that says so. The last block that ends, whatever ended it, has the host see the kernel's number.
    pub(crate) fn text(self) -> CString {
        let mut t = Text::default();
        let [to, from, sends_at, words, slots, theirs, there, count, piece, host, number] =
            t.parameters(PARAMETERS);
        let of = Block::new(&mut t, [&words, &theirs, &host]);
        let rest = t.d_of("sub.u64", format!("{piece}, 1"));
        let pieces = t.d_of("add.u64", format!("{count}, {rest}"));
        let pieces = t.d_of("div.u64", format!("{pieces}, {piece}"));
        let left = t.d_of("sub.u64", format!("{pieces}, {}", of.block));
        let rest = t.d_of("sub.u64", format!("{}, 1", of.blocks));
        let left = t.d_of("add.u64", format!("{left}, {rest}"));
        let steps = t.d_of("div.u64", format!("{left}, {}", of.blocks));
        let ahead = t.d_of("min.u64", format!("{steps}, {AHEAD}"));
        let all = t.d_of("add.u64", format!("{steps}, {ahead}"));
        let step = t.d_of("mov.b64", "0");
        let [again, met, done, end] = [(); 4].map(|()| t.label());

        t.place(&again);
        let over = t.p_of("setp.ge.u64", format!("{step}, {all}"));
        t.put(format!("@{over} bra {done}"));
        let sends = t.p_of("setp.lt.u64", format!("{step}, {steps}"));
        let reduces = t.p_of("setp.ge.u64", format!("{step}, {ahead}"));
        let sent = t.d_of("add.u64", format!("{}, {step}", of.before));
        let got = t.d_of("sub.u64", format!("{sent}, {ahead}"));
        let is_over = t.p_of("setp.ne.u64", format!("{step}, {step}"));
        t.put(format!("@!{} bra {met}", of.leads));
        of.wait(&mut t, &reduces, &got, &is_over);
        t.place(&met);
        let any = t.p_of("bar.red.or.pred", format!("0, {is_over}"));
        t.put(format!("@{any} bra {end}"));

        let plain = ReduceKernel { op: self.op, ty: self.ty, access: self.access };
        let threads = (&of.thread, &of.threads);
        let skip = t.label();
        t.put(format!("@!{sends} bra {skip}"));
        let (at, few) = self.piece(&mut t, &of, &step, &piece, &count);
        let source = t.d_of("add.u64", format!("{sends_at}, {at}"));
        let slot = of.slot(&mut t, &there, &sent);
        plain.sweep(&mut t, (&slot, &[&source]), &few, threads, TOGETHER);
        t.place(&skip);

        let skip = t.label();
        t.put(format!("@!{reduces} bra {skip}"));
        let earlier = t.d_of("sub.u64", format!("{step}, {ahead}"));
        let (at, few) = self.piece(&mut t, &of, &earlier, &piece, &count);
        let [here, target] = [&from, &to].map(|base| t.d_of("add.u64", format!("{base}, {at}")));
        let slot = of.slot(&mut t, &slots, &got);
        let operands = if self.is_first { [&here, &slot] } else { [&slot, &here] };
        plain.sweep(&mut t, (&target, &operands), &few, threads, TOGETHER);
        t.place(&skip);

        t.put("bar.sync 0");
        let next = t.label();
        t.put(format!("@!{} bra {next}", of.leads));
        t.put(format!("@!{sends} bra {next}"));
        t.put("fence.acq_rel.sys");
        let n = t.d_of("add.u64", format!("{sent}, 1"));
        t.put(format!("st.volatile.global.u64 [{}+{ARRIVED}], {n}", of.theirs));
        t.place(&next);
        t.put(format!("add.u64 {step}, {step}, 1"));
        t.put(format!("bra {again}"));

        t.place(&done);
        let after = t.d_of("add.u64", format!("{}, {steps}", of.before));
        t.put(format!("@{} st.global.u64 [{}+{BEFORE}], {after}", of.leads, of.words));
        t.place(&end);
        let out = t.label();
        t.put(format!("@!{} bra {out}", of.leads));
        let ended = t.d_of("atom.acq_rel.gpu.global.add.u64", format!("[{words}+0], 1"));
        t.put(format!("add.u64 {ended}, {ended}, 1"));
        let others = t.p_of("setp.lt.u64", format!("{ended}, {}", of.blocks));
        t.put(format!("@{others} bra {out}"));
        let none = t.d_of("mov.b64", "0");
        t.put(format!("st.global.u64 [{words}+0], {none}"));
        t.put("fence.acq_rel.sys");
        t.put(format!("st.volatile.global.u64 [{host}+{DONE}], {number}"));
        t.place(&out);
        t.put("ret");
        // The first ones that order loads and stores by name.
        t.end_for("sm_70", &self.name(), &PARAMETERS)
    }

    /// Where the block's piece of that step is, in bytes, and how many elements it has.
    fn piece(self, t: &mut Text, of: &Block, step: &Reg, piece: &Reg, count: &Reg) -> (Reg, Reg) {
        let number = t.d_of("mul.lo.u64", format!("{step}, {}", of.blocks));
        let number = t.d_of("add.u64", format!("{number}, {}", of.block));
        let at = t.d_of("mul.lo.u64", format!("{number}, {piece}"));
        let left = t.d_of("sub.u64", format!("{count}, {at}"));
        let few = t.d_of("min.u64", format!("{left}, {piece}"));
        (t.d_of("mul.lo.u64", format!("{at}, {}", self.ty.extent())), few)
    }
}

impl Block {
    fn new(t: &mut Text, [words, theirs, host]: [&Reg; 3]) -> Block {
        let [thread, block, threads, blocks] = ["%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x"].map(|from| {
            let v = t.r_of("mov.u32", from);
            t.d_of("cvt.u64.u32", v)
        });
        let leads = t.p_of("setp.eq.u64", format!("{thread}, 0"));
        let line = t.d_of("mul.lo.u64", format!("{block}, {LINE}"));
        let [own, theirs] = [words, theirs].map(|base| {
            let at = t.d_of("add.u64", format!("{base}, {line}"));
            t.d_of("add.u64", format!("{at}, {LINE}"))
        });
        let place = t.d_of("mul.lo.u64", format!("{block}, {}", DEPTH * SLOT));
        let before = t.d_of("ld.global.u64", format!("[{own}+{BEFORE}]"));
        let host = host.clone();
        Block { leads, thread, threads, block, blocks, words: own, theirs, host, place, before }
    }

    /// Where the slot of the piece with that number is.
    fn slot(&self, t: &mut Text, base: &Reg, number: &Reg) -> Reg {
        let which = t.d_of("and.b64", format!("{number}, {}", DEPTH - 1));
        let at = t.d_of("mul.lo.u64", format!("{which}, {SLOT}"));
        let at = t.d_of("add.u64", format!("{at}, {}", self.place));
        t.d_of("add.u64", format!("{base}, {at}"))
    }

    /// Waits, where `if_so` is, until the piece with that number has come, or sets `is_over`: all is over.
    fn wait(&self, t: &mut Text, if_so: &Reg, number: &Reg, is_over: &Reg) {
        let (again, go) = (t.label(), t.label());
        t.put(format!("@!{if_so} bra {go}"));
        let polls = t.d_of("mov.b64", "0");
        t.place(&again);
        let v = t.d_of("ld.acquire.sys.global.u64", format!("[{}+{ARRIVED}]", self.words));
        let past = t.p_of("setp.gt.u64", format!("{v}, {number}"));
        t.put(format!("@{past} bra {go}"));
        t.put(format!("add.u64 {polls}, {polls}, 1"));
        let some = t.d_of("and.b64", format!("{polls}, {}", POLLS - 1));
        let few = t.p_of("setp.ne.u64", format!("{some}, 0"));
        t.put(format!("@{few} bra {again}"));
        let stop = t.d_of("ld.volatile.global.u64", format!("[{}+{STOP}]", self.host));
        t.put(format!("setp.ne.u64 {is_over}, {stop}, 0"));
        t.put(format!("@!{is_over} bra {again}"));
        t.place(&go);
    }
}
