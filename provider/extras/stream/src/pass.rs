//! The kernel of a message between two devices: it waits for the words of slots in its own device's memory,
//! copies, and raises the peer's.
//!
//! A put of several blocks has one word to wait for and one to raise: each block waits, and the last one that
//! leaves clears the one and raises the other, unless a block has left without its part.
//!
//! One launch has all parts of a message. A slot has up to 8 of them, each with a word and bytes of
//! its own. A block has the words of one remainder, so that the uses of a word are in order. Words are in the
//! memory of the device that waits for them: the peer's kernel stores there, and a poll does not leave the
//! device. Such a word is raised by a message alone, never by a watchdog: a kernel leaves its wait when it
//! finds the error word in the host's memory. Loads of one word of the host's by several blocks are served
//! one after the other, some 0.9 us each (H200): the first block loads, and says in a word of its device what
//! it has found (1: nothing, 2: a failure; the last block of the kernel clears it).
//!
//! A sender raises no flag if the endpoint has failed, and finds that out behind its copy: what is in a slot
//! without its flag is no message. A receiver finds it out before it copies. What copies nothing, as a wait
//! for a signal, looks once: a load takes a microsecond. A wait of over [`UNSAID`] polls is said in the
//! lane's words, for the watchdog. That an execution has ended is said behind the error word.

use std::fmt::Write as _;

use hmem::cuda::{Function, PerContext, Stream};

use crate::error::Error;
use crate::failure::{self, Kind};
use crate::kernel::{self, Launch, Lines, WIDTHS};
use crate::layout::{AT, BEGUN, ENDED, ERROR, LINE, Layout, WORD_AT, code};
use crate::shared::Direct;
use crate::slots::Slots;

/// Most threads of a block.
const THREADS: usize = 512;
/// Accesses of a thread that are under way together.
const TOGETHER: usize = 8;
/// Polls between two loads of the error word by the first block, and by others: powers of two.
const OFTEN: u32 = 32;
const RARELY: u32 = 512;
/// Polls of a wait that the watchdog is not to know of.
const UNSAID: u32 = 512;

/// What a launch does: for each part, waits for the word of its slot, copies, raises the peer's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// Memory of this process.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// To the slots, or from there.
    pub(crate) sends: bool,
    pub(crate) slots: Slots,
    /// The lines of slot 0: of this side's, with the operation that waits; of the peer's.
    pub(crate) wait: Option<(Kind, u32)>,
    pub(crate) raise: Option<u32>,
    /// Whether the word that was waited for has to have the message's length and the part's number.
    pub(crate) checks: bool,
    /// The peer's line that is raised before all else, of a put: the acknowledgement of an earlier one.
    pub(crate) acknowledges: Option<u32>,
}

impl Pass {
    /// A wait, or a word that is raised, without data.
    pub(crate) fn word(wait: Option<(Kind, u32)>, raise: Option<u32>) -> Pass {
        let slots = Slots::spread(0, 0, 1);
        Pass { at: 0, len: 0, sends: false, slots, wait, raise, checks: false, acknowledges: None }
    }

    /// The line that it raises, if that is all it does.
    pub(crate) fn only_raises(&self) -> Option<u32> {
        self.raise.filter(|_| *self == Pass::word(None, self.raise))
    }

    /// What the flag of each part says of the message: one of another length has other parts.
    pub(crate) fn length(&self) -> u32 {
        (self.len ^ self.len >> 32) as u32
    }

    /// The two words of a part's flag, as the kernel has them in one.
    pub(crate) fn flag(&self, part: u32) -> [u32; 2] {
        [1 | part << 1, self.length()]
    }
}

/// Loads of accesses one stride from each other, and then their stores.
fn copies(ty: &str, values: &[String]) -> String {
    let mut all = String::new();
    for (way, register) in [("ld.global.cg", "%d33"), ("st.global", "%d34")] {
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                let _ = writeln!(all, "    add.u64 {register}, {register}, %d36;");
            }
            let _ = match way {
                "st.global" => writeln!(all, "    {way}.{ty} [{register}+0], {value};"),
                _ => writeln!(all, "    {way}.{ty} {value}, [{register}+0];"),
            };
        }
    }
    all
}

/// What a block but the first one knows of the error word: what the first one has found, which it waits for.
/// It loads the word itself where that takes long: nothing says that the first block runs before the others.
fn looks(label: &str) -> String {
    format!(
        "    @!%p12 bra KNOWS{label};
    mov.u32 %r15, 0;
AGAIN{label}:
    setp.ne.u32 %p4, %r10, 0;
    @%p4 bra FOUND{label};
    ld.volatile.global.u32 %r10, [%d38+4];
    add.u32 %r15, %r15, 1;
    setp.lt.u32 %p4, %r15, {OFTEN};
    @%p4 bra AGAIN{label};
    ld.volatile.global.u32 %r4, [%d0+0];
    bra KNOWS{label};
FOUND{label}:
    setp.eq.u32 %p4, %r10, 2;
    @%p4 mov.u32 %r4, 1;
KNOWS{label}:
"
    )
}

/// The text of the kernels, for devices that have loads with acquire.
pub(crate) fn module() -> String {
    let mut all = String::from(".version 6.0\n.target sm_70\n.address_size 64\n");
    for (size, ty, _, shift) in WIDTHS {
        let value = |i: usize| match size {
            16 => format!("{{%d{}, %d{}}}", 40 + 2 * i, 41 + 2 * i),
            _ => format!("%r{}", 16 + i),
        };
        let values: Vec<String> = (0..TOGETHER).map(value).collect();
        let (several, one) = (copies(ty, &values), copies(ty, &values[..1]));
        let (last, rarely, ahead) = (OFTEN - 1, RARELY - 1, TOGETHER - 1);
        let (first_known, second_known) = (looks(&format!("A{size}")), looks(&format!("B{size}")));
        let _ = write!(
            all,
            "
.visible .entry strait_stream_pass{size}(.param .u64 at, .param .u64 len, .param .u64 sends, \
.param .u64 ring, .param .u64 stride, .param .u64 slots, .param .u64 first, .param .u64 part, \
.param .u64 parts, .param .u64 wait, .param .u64 raise, .param .u64 length, .param .u64 checks, .param .u64 code, \
.param .u64 mine, .param .u64 error, .param .u64 other, .param .u64 lane, .param .u64 ended, \
.param .u64 number, .param .u64 shared, .param .u64 shift, .param .u64 cell, .param .u64 joint, \
.param .u64 acknowledges)
{{
    .reg .pred %p<16>;
    .reg .b32 %r<24>;
    .reg .b64 %d<56>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %nctaid.x;
    ld.param.u64 %d0, [error];
    setp.ne.u32 %p0, %r0, 0;
    ld.param.u64 %d8, [sends];
    setp.ne.u64 %p1, %d8, 0;
    setp.gt.u64 %p10, %d8, 1;
    setp.ne.u32 %p12, %r1, 0;
    setp.eq.u32 %p13, %r3, 1;
    ld.param.u64 %d35, [joint];
    setp.ne.u64 %p14, %d35, 0;
    ld.param.u64 %d38, [shared];
    mov.u32 %r4, 0;
    mov.u32 %r10, 1;
    mov.u32 %r14, {last};
    @%p12 mov.u32 %r10, 0;
    @%p12 mov.u32 %r14, {rarely};
    or.pred %p11, %p0, %p12;
    and.pred %p9, %p13, %p10;
    or.pred %p9, %p9, %p11;
    @!%p9 ld.volatile.global.u32 %r4, [%d0+0];
    or.pred %p9, %p13, %p11;
    @%p9 bra BEGIN{size};
    setp.ne.u32 %p4, %r4, 0;
    selp.b32 %r9, 2, 1, %p4;
    st.volatile.global.u32 [%d38+4], %r9;
BEGIN{size}:
    ld.param.u64 %d35, [acknowledges];
    setp.eq.u64 %p4, %d35, 0;
    or.pred %p4, %p4, %p11;
    @%p4 bra READY{size};
    setp.ne.u32 %p4, %r4, 0;
    @%p4 bra READY{size};
    mov.u64 %d36, 1;
    st.volatile.global.u64 [%d35+0], %d36;
READY{size}:
    cvt.u64.u32 %d1, %r0;
    cvt.u64.u32 %d2, %r2;
    cvt.u64.u32 %d3, %r1;
    cvt.u64.u32 %d37, %r3;
    mov.u64 %d4, 0;
    ld.param.u64 %d5, [lane];
    ld.param.u64 %d6, [parts];
    ld.param.u64 %d7, [slots];
    ld.param.u64 %d12, [shift];
    cvt.u32.u64 %r6, %d12;
    shl.b64 %d7, %d7, %r6;
    ld.param.u64 %d15, [length];
PART{size}:
    add.u64 %d9, %d4, %d3;
    setp.ge.u64 %p2, %d9, %d6;
    @%p2 bra DONE{size};
    ld.param.u64 %d10, [first];
    ld.param.u64 %d12, [shift];
    cvt.u32.u64 %r6, %d12;
    shr.u64 %d12, %d3, %r6;
    shl.b64 %d39, %d12, %r6;
    sub.u64 %d39, %d3, %d39;
    add.u64 %d10, %d10, %d12;
    ld.param.u64 %d12, [slots];
    setp.ge.u64 %p3, %d10, %d12;
    @%p3 sub.u64 %d10, %d10, %d12;
    shl.b64 %d11, %d10, 6;
    shl.b64 %d12, %d39, 3;
    add.u64 %d11, %d11, %d12;
    @%p14 mov.u64 %d11, 0;
    ld.param.u64 %d12, [part];
    mul.lo.u64 %d13, %d9, %d12;
    ld.param.u64 %d14, [len];
    sub.u64 %d14, %d14, %d13;
    min.u64 %d14, %d14, %d12;
    mov.u32 %r5, 0;
    @%p0 bra MEET{size};
    ld.param.u64 %d16, [wait];
    setp.eq.u64 %p15, %d16, 0;
    @%p15 bra KNOWN{size};
    add.u64 %d16, %d16, %d11;
    ld.param.u64 %d17, [code];
    @!%p14 add.u64 %d17, %d17, %d10;
    selp.b64 %d18, %d10, %d39, %p14;
    shl.b64 %d18, %d18, {WORD_AT};
    or.b64 %d17, %d17, %d18;
    cvt.u32.u64 %r6, %d17;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
POLL{size}:
    @%p12 ld.volatile.global.u32 %r10, [%d38+4];
    ld.acquire.sys.global.u64 %d18, [%d16+0];
    and.b64 %d19, %d18, 1;
    setp.ne.u64 %p4, %d19, 0;
    @%p4 bra CAME{size};
    add.u32 %r7, %r7, 1;
    mov.u32 %r5, 1;
    setp.eq.u32 %p4, %r10, 2;
    @%p4 bra CAME{size};
    mov.u32 %r5, 0;
    and.b32 %r9, %r7, %r14;
    setp.ne.u32 %p4, %r9, %r14;
    @%p4 bra POLL{size};
    mov.u32 %r5, 1;
    setp.ne.u32 %p4, %r4, 0;
    @%p4 bra CAME{size};
    mov.u32 %r5, 0;
    ld.volatile.global.u32 %r4, [%d0+0];
    setp.lt.u32 %p4, %r7, {UNSAID};
    @%p4 bra POLL{size};
    ld.volatile.global.u32 %r9, [%d5+{AT}];
    setp.ne.u32 %p4, %r9, 0;
    @%p4 bra POLL{size};
    ld.volatile.global.u32 %r9, [%d5+{BEGUN}];
    add.u32 %r9, %r9, 1;
    st.volatile.global.u32 [%d5+{BEGUN}], %r9;
    st.volatile.global.u32 [%d5+{AT}], %r6;
    mov.u32 %r8, 1;
    bra POLL{size};
CAME{size}:
    setp.eq.u32 %p4, %r8, 0;
    @%p4 bra CLEAR{size};
    ld.volatile.global.u32 %r9, [%d5+{AT}];
    setp.ne.u32 %p4, %r9, %r6;
    @%p4 bra CLEAR{size};
    mov.u32 %r9, 0;
    st.volatile.global.u32 [%d5+{AT}], %r9;
CLEAR{size}:
    setp.ne.u32 %p4, %r5, 0;
    @%p4 bra MEET{size};
    @%p10 bra TAKE{size};
KNOWN{size}:
{first_known}    setp.ne.u32 %p4, %r4, 0;
    @%p4 bra FAILS{size};
    @%p15 bra MEET{size};
TAKE{size}:
    mov.u32 %r9, 0;
    @!%p14 st.volatile.global.u32 [%d16+0], %r9;
    @%p10 bra MEET{size};
    ld.param.u64 %d17, [checks];
    setp.eq.u64 %p4, %d17, 0;
    @%p4 bra FAILS{size};
    shl.b64 %d17, %d15, 32;
    shl.b64 %d19, %d9, 1;
    or.b64 %d17, %d17, %d19;
    or.b64 %d17, %d17, 1;
    setp.eq.u64 %p4, %d18, %d17;
    @%p4 bra FAILS{size};
    ld.param.u64 %d17, [mine];
    shl.b64 %d18, %d10, 14;
    or.b64 %d17, %d17, %d18;
    cvt.u32.u64 %r9, %d17;
    or.b32 %r10, %r9, 0x80000000;
    ld.param.u64 %d18, [other];
    st.volatile.global.u32 [%d18+0], %r10;
    membar.sys;
    st.volatile.global.u32 [%d0+0], %r9;
    mov.u32 %r4, 1;
FAILS{size}:
    setp.ne.u32 %p4, %r4, 0;
    selp.b32 %r5, 1, 0, %p4;
MEET{size}:
    setp.ne.u32 %p5, %r5, 0;
    bar.red.or.pred %p6, 0, %p5;
    @%p6 bra DONE{size};
    ld.param.u64 %d20, [sends];
    setp.lt.u64 %p4, %d20, 2;
    setp.eq.u64 %p9, %d14, 0;
    and.pred %p9, %p9, %p4;
    or.pred %p9, %p9, %p11;
    @!%p9 ld.volatile.global.u32 %r4, [%d0+0];
    @%p0 bra COPY{size};
    @!%p12 bra COPY{size};
    ld.volatile.global.u32 %r10, [%d38+4];
COPY{size}:
    ld.param.u64 %d20, [at];
    add.u64 %d20, %d20, %d13;
    ld.param.u64 %d21, [ring];
    ld.param.u64 %d22, [stride];
    mul.lo.u64 %d22, %d22, %d10;
    add.u64 %d21, %d21, %d22;
    ld.param.u64 %d22, [cell];
    mul.lo.u64 %d22, %d22, %d39;
    add.u64 %d21, %d21, %d22;
    selp.b64 %d23, %d21, %d20, %p1;
    selp.b64 %d24, %d20, %d21, %p1;
    shr.u64 %d25, %d14, {shift};
    mov.u64 %d26, %d1;
    shl.b64 %d36, %d2, {shift};
SEVERAL{size}:
    mul.lo.u64 %d27, %d2, {ahead};
    add.u64 %d27, %d27, %d26;
    setp.ge.u64 %p7, %d27, %d25;
    @%p7 bra LOOP{size};
    shl.b64 %d28, %d26, {shift};
    add.u64 %d34, %d23, %d28;
    add.u64 %d33, %d24, %d28;
{several}    add.u64 %d26, %d27, %d2;
    bra SEVERAL{size};
LOOP{size}:
    setp.ge.u64 %p7, %d26, %d25;
    @%p7 bra COPIED{size};
    shl.b64 %d28, %d26, {shift};
    add.u64 %d34, %d23, %d28;
    add.u64 %d33, %d24, %d28;
{one}    add.u64 %d26, %d26, %d2;
    bra LOOP{size};
COPIED{size}:
    bar.sync 0;
    @%p0 bra NEXT{size};
    membar.sys;
    ld.param.u64 %d29, [raise];
    setp.eq.u64 %p7, %d29, 0;
    or.pred %p7, %p7, %p14;
    @%p7 bra NEXT{size};
{second_known}    setp.ne.u32 %p7, %r4, 0;
    @%p7 bra NEXT{size};
    add.u64 %d29, %d29, %d11;
    shl.b64 %d30, %d15, 32;
    shl.b64 %d28, %d9, 1;
    or.b64 %d30, %d30, %d28;
    selp.b64 %d30, %d30, 0, %p1;
    or.b64 %d30, %d30, 1;
    st.volatile.global.u64 [%d29+0], %d30;
NEXT{size}:
    add.u64 %d3, %d3, %d37;
    setp.lt.u64 %p7, %d3, %d7;
    @%p7 bra PART{size};
    cvt.u64.u32 %d3, %r1;
    add.u64 %d4, %d4, %d7;
    bra PART{size};
DONE{size}:
    @%p0 bra LEAVE{size};
    ld.param.u64 %d31, [ended];
    or.b32 %r9, %r4, %r5;
    setp.eq.u32 %p8, %r9, 0;
    @%p8 bra COUNT{size};
    mov.u32 %r9, 1;
    @%p14 st.volatile.global.u32 [%d38+8], %r9;
    or.pred %p9, %p12, %p13;
    @%p9 bra SAID{size};
    mov.u32 %r9, 2;
    st.volatile.global.u32 [%d38+4], %r9;
SAID{size}:
    membar.sys;
COUNT{size}:
    @%p13 bra ENDED{size};
    sub.u32 %r12, %r3, 1;
    atom.global.inc.u32 %r13, [%d38+0], %r12;
    setp.ne.u32 %p8, %r13, %r12;
    @%p8 bra LEAVE{size};
    membar.sys;
    mov.u32 %r9, 0;
    st.volatile.global.u32 [%d38+4], %r9;
    @!%p14 bra ENDED{size};
    ld.volatile.global.u32 %r10, [%d38+8];
    st.volatile.global.u32 [%d38+8], %r9;
    setp.ne.u32 %p8, %r10, 0;
    @%p8 bra ENDED{size};
    ld.param.u64 %d16, [wait];
    setp.ne.u64 %p8, %d16, 0;
    @%p8 st.volatile.global.u32 [%d16+0], %r9;
    membar.sys;
    ld.param.u64 %d29, [raise];
    mov.u64 %d30, 1;
    setp.ne.u64 %p8, %d29, 0;
    @%p8 st.volatile.global.u64 [%d29+0], %d30;
ENDED{size}:
    setp.eq.u64 %p8, %d31, 0;
    @%p8 bra LEAVE{size};
    ld.param.u64 %d32, [number];
    cvt.u32.u64 %r11, %d32;
    st.volatile.global.u32 [%d31+{ENDED}], %r11;
LEAVE{size}:
    ret;
}}
"
        );
    }
    all
}

/// The kernels of a context, and its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    functions: [Function; 3],
    pub(crate) device: i32,
}

static LOADED: PerContext<Passes> = PerContext::new();

/// The kernels for a stream's context, which has this number; in `Err`, why its device has none.
pub(crate) fn load(stream: Stream, id: u64) -> Result<Passes, Error> {
    LOADED.get((stream.context(), id), || {
        let names = [c"strait_stream_pass16", c"strait_stream_pass4", c"strait_stream_pass1"];
        let device = stream.device().map_err(|e| Error::Kernel(e.to_string()))?;
        Ok(Passes { functions: kernel::load_all(stream, &module(), names)?, device })
    })
}

impl Passes {
    /// What does it. `ended`: with it the execution of this number ends.
    pub(crate) fn launch(
        &self,
        p: &Pass,
        direct: &Direct,
        layout: &Layout,
        lines: &Lines,
        lane: u32,
        ended: Option<u32>,
    ) -> Launch {
        let s = &p.slots;
        let all = (p.at | s.at | s.stride | p.len | s.cell | if s.parts > 1 { s.part } else { 0 }) as u64;
        let which = WIDTHS.iter().position(|w| all % w.0 == 0).unwrap_or(2);
        let accesses = p.len.min(s.part) as u64 / WIDTHS[which].0;
        let threads = (accesses.next_multiple_of(32) as usize).clamp(32, THREADS);
        let blocks = s.blocks();
        let (kind, line) = p.wait.unwrap_or((Kind::None, 0));
        let word = |lines: usize, line: u32| (lines + line as usize * LINE) as u64;
        let arguments = vec![
            p.at as u64,
            p.len as u64,
            // A message is none before its flag is raised, and the error word is looked at before that.
            if p.sends { 1 + u64::from(p.raise.is_some() && s.stride > 0 && !s.is_joint()) } else { 0 },
            s.at as u64,
            s.stride as u64,
            s.count.into(),
            s.first.into(),
            s.part as u64,
            s.parts.into(),
            p.wait.map_or(0, |_| word(direct.own, line)),
            p.raise.map_or(0, |line| word(direct.peer, line)),
            p.length().into(),
            p.checks.into(),
            code(kind, line).into(),
            failure::word(libc::EMSGSIZE, Kind::Receive, 0).into(),
            (lines.own + ERROR) as u64,
            (lines.peer + ERROR) as u64,
            lines.lane as u64,
            ended.map_or(0, |_| lines.lane as u64),
            ended.unwrap_or(0).into(),
            word(direct.own, layout.job(lane)),
            s.shift.into(),
            s.cell as u64,
            s.is_joint().into(),
            p.acknowledges.map_or(0, |line| word(direct.peer, line)),
        ];
        Launch { function: self.functions[which], blocks, threads: threads as u32, arguments, raises: true }
    }
}

#[cfg(test)]
mod tests;
