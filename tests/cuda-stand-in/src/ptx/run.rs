//! A launch: its threads, one after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use std::time::Duration;

use stand_in::memory::{Backing, alias, find};

use super::float::{from_half, to_half};
use super::op::{Arg, Binary, Class, Compare, Kernel, Op, Reg, Special, Type};
use crate::{ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED_ADDRESS};

/// More instructions than any thread of a kernel has that comes to an end.
const MOST: u64 = 1 << 36;

/// A kernel with its grid and arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) arguments: Vec<u64>,
}

/// A thread, between two barriers.
struct Thread {
    number: u32,
    registers: Vec<u64>,
    /// The next instruction, and how many were run.
    next: usize,
    done: u64,
    polls: u64,
}

/// Memory that the launch has accessed.
struct Known {
    base: u64,
    len: u64,
    at: *mut u8,
    _keep: Option<Arc<Backing>>,
}

#[derive(Default)]
struct Memory(Vec<Known>);

impl Memory {
    /// Where the CPU finds `len` bytes of what a device accesses at `addr`. Host memory that the driver does
    /// not know is out of a kernel's reach.
    fn find(&mut self, addr: u64, len: u64) -> Result<*mut u8, i32> {
        if addr % len != 0 {
            return Err(MISALIGNED_ADDRESS);
        }
        let inside = |k: &Known| addr.wrapping_sub(k.base) < k.len && len <= k.len - (addr - k.base);
        if let Some(known) = self.0.iter().find(|k| inside(k)) {
            return Ok(unsafe { known.at.add((addr - known.base) as usize) });
        }
        let region = find(addr as usize).ok_or(ILLEGAL_ADDRESS)?;
        let (at, keep) = alias(region.base, region.len).ok_or(ILLEGAL_ADDRESS)?;
        self.0.push(Known { base: region.base as u64, len: region.len as u64, at, _keep: keep });
        let known = self.0.last().filter(|k| inside(k)).ok_or(ILLEGAL_ADDRESS)?;
        Ok(unsafe { known.at.add((addr - known.base) as usize) })
    }

    fn load(&mut self, addr: u64, ty: Type, n: usize, to: impl FnMut(usize, u64)) -> Result<(), i32> {
        let size = u64::from(ty.bits / 8);
        let at = self.find(addr, size * n as u64)?;
        (0..n).map(|i| (i, unsafe { read(at.add(i * size as usize), size) })).for_each({
            let mut to = to;
            move |(i, v)| to(i, v)
        });
        Ok(())
    }

    fn store(&mut self, addr: u64, ty: Type, values: impl ExactSizeIterator<Item = u64>) -> Result<(), i32> {
        let size = u64::from(ty.bits / 8);
        let at = self.find(addr, size * values.len() as u64)?;
        for (i, v) in values.enumerate() {
            unsafe { write(at.add(i * size as usize), size, v) };
        }
        Ok(())
    }

    /// Atomically: the CPU may add too.
    fn add(&mut self, addr: u64, ty: Type, value: u64) -> Result<u64, i32> {
        let at = self.find(addr, u64::from(ty.bits / 8))?;
        Ok(match ty.bits {
            32 => unsafe { AtomicU32::from_ptr(at.cast()) }.fetch_add(value as u32, SeqCst).into(),
            _ => unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_add(value, SeqCst),
        })
    }

    /// Atomically; what was there.
    fn increment(&mut self, addr: u64, most: u32) -> Result<u32, i32> {
        let at = self.find(addr, 4)?;
        let next = |v| Some(if v >= most { 0 } else { v + 1 });
        let word = unsafe { AtomicU32::from_ptr(at.cast()) };
        word.fetch_update(SeqCst, SeqCst, next).map_err(|_| LAUNCH_FAILED)
    }
}

/// One access, as a device's is: memcpy(3) stores a word of 8 bytes twice, and the second store may come when
/// another process has changed the word since.
unsafe fn read(at: *mut u8, size: u64) -> u64 {
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(at).load(Acquire).into(),
            2 => AtomicU16::from_ptr(at.cast()).load(Acquire).into(),
            4 => AtomicU32::from_ptr(at.cast()).load(Acquire).into(),
            _ => AtomicU64::from_ptr(at.cast()).load(Acquire),
        }
    }
}

/// The same.
unsafe fn write(at: *mut u8, size: u64, value: u64) {
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(at).store(value as u8, Release),
            2 => AtomicU16::from_ptr(at.cast()).store(value as u16, Release),
            4 => AtomicU32::from_ptr(at.cast()).store(value as u32, Release),
            _ => AtomicU64::from_ptr(at.cast()).store(value, Release),
        }
    }
}

impl Launch {
    /// Runs all threads; in `Err`, what the driver calls it.
    pub(crate) fn run(&self) -> Result<(), i32> {
        let mut memory = Memory::default();
        for block in 0..self.blocks {
            let mut waiting = Vec::new();
            for number in 0..self.threads {
                let mut thread =
                    Thread { number, registers: vec![0; self.kernel.registers], next: 0, done: 0, polls: 0 };
                if self.thread(&mut memory, block, &mut thread)? {
                    waiting.push(thread);
                }
            }
            while !waiting.is_empty() {
                // A thread that has ended never comes to the barrier.
                if waiting.len() != self.threads as usize {
                    return Err(LAUNCH_FAILED);
                }
                self.meet(&mut waiting)?;
                let mut again = Vec::new();
                for mut thread in waiting {
                    if self.thread(&mut memory, block, &mut thread)? {
                        again.push(thread);
                    }
                }
                waiting = again;
            }
        }
        Ok(())
    }

    /// All threads are at a barrier: the same one, which may have a value of all.
    fn meet(&self, waiting: &mut [Thread]) -> Result<(), i32> {
        let Some(first) = waiting.first() else { return Ok(()) };
        let at = first.next;
        if waiting.iter().any(|t| t.next != at) {
            return Err(LAUNCH_FAILED);
        }
        if let Some(Op::MeetAny { to, from }) = self.kernel.code.get(at.wrapping_sub(1)).map(|ins| &ins.op) {
            let any = waiting.iter().any(|t| t.registers[*from] != 0);
            waiting.iter_mut().for_each(|t| t.registers[*to] = any.into());
        }
        Ok(())
    }

    /// Runs a thread until it ends, or comes to a barrier: then `true`.
    fn thread(&self, memory: &mut Memory, block: u32, at: &mut Thread) -> Result<bool, i32> {
        let kernel = &*self.kernel;
        let Thread { number: thread, registers: r, next, done, polls } = at;
        while let Some(ins) = kernel.code.get(*next) {
            *next += 1;
            *done += 1;
            if *done > MOST {
                return Err(LAUNCH_FAILED);
            }
            if ins.guard.is_some_and(|(by, wanted)| (r[by] != 0) != wanted) {
                continue;
            }
            match &ins.op {
                Op::Parameter { to, number } => r[*to] = self.arguments[*number],
                Op::Load { ty, to, at, offset, acquires } => {
                    if *acquires {
                        // What stores there has a thread too.
                        *polls += 1;
                        match *polls % 16 {
                            0 => std::thread::sleep(Duration::from_micros(20)),
                            _ => std::thread::yield_now(),
                        }
                    }
                    let addr = r[*at].wrapping_add_signed(*offset);
                    memory.load(addr, *ty, to.len(), |i, v| {
                        r[to[i]] = if ty.class == Class::Signed { ty.signed(v) as u64 } else { v }
                    })?;
                }
                Op::Increment { to, at, offset, most } => {
                    let most = match *most {
                        Arg::Reg(reg) => r[reg],
                        Arg::Value(v) => v,
                    };
                    r[*to] = memory.increment(r[*at].wrapping_add_signed(*offset), most as u32)?.into();
                }
                Op::Store { ty, from, at, offset } => {
                    let addr = r[*at].wrapping_add_signed(*offset);
                    memory.store(addr, *ty, from.iter().map(|f| r[*f]))?;
                }
                Op::Add { ty, to, from, at, offset } => {
                    let value = match *from {
                        Arg::Reg(reg) => r[reg],
                        Arg::Value(v) => v,
                    };
                    let before = memory.add(r[*at].wrapping_add_signed(*offset), *ty, value)?;
                    if let Some(to) = to {
                        r[*to] = before;
                    }
                }
                Op::Barrier => {}
                Op::Read { to, from } => {
                    r[*to] = u64::from(match from {
                        Special::Thread => *thread,
                        Special::Block => block,
                        Special::Threads => self.threads,
                        Special::Blocks => self.blocks,
                    });
                }
                Op::Branch { to } => *next = *to,
                Op::Return => return Ok(false),
                Op::Meet | Op::MeetAny { .. } => return Ok(true),
                op => compute(op, r),
            }
        }
        Ok(false)
    }
}

/// What concerns registers alone.
fn compute(op: &Op, r: &mut [u64]) {
    let of = |a: &Arg| match *a {
        Arg::Reg(reg) => r[reg],
        Arg::Value(v) => v,
    };
    let (to, v): (Reg, u64) = match op {
        Op::Move { to, from } => (*to, of(from)),
        Op::Split { low, high, from } => {
            let v = r[*from];
            (r[*low], r[*high]) = (v & 0xffff, v >> 16 & 0xffff);
            return;
        }
        Op::Join { to, low, high } => (*to, r[*low] & 0xffff | (r[*high] & 0xffff) << 16),
        Op::Binary { what, ty, to, a, b } => (*to, binary(*what, *ty, of(a), of(b))),
        Op::MulWide { to, a, b } => (*to, (of(a) & 0xffff_ffff) * (of(b) & 0xffff_ffff)),
        Op::Not { ty, to, a } => (*to, !of(a) & ty.mask()),
        Op::Extract { ty, to, a, at, len } => {
            let (v, at, len) = (of(a) as u32, of(at) as u32 & 255, of(len) as u32 & 255);
            let field = v.checked_shr(at).unwrap_or(0);
            let field = if len < 32 { field & ((1 << len) - 1) } else { field };
            let sign = ty.class == Class::Signed && len > 0 && len < 32 && field >> (len - 1) & 1 == 1;
            (*to, u64::from(if sign { field | u32::MAX << len } else { field }))
        }
        Op::Insert { to, a, b, at, len } => {
            let (at, len) = (of(at) as u32 & 255, of(len) as u32 & 255);
            let ones = if len < 32 { (1u32 << len) - 1 } else { u32::MAX };
            let mask = ones.checked_shl(at).unwrap_or(0);
            let field = (of(a) as u32).checked_shl(at).unwrap_or(0);
            (*to, u64::from(of(b) as u32 & !mask | field & mask))
        }
        Op::Set { compare, ty, to, a, b } => (*to, set(*compare, *ty, of(a), of(b)).into()),
        Op::Test { infinite, ty, to, a } => {
            let v = float(*ty, of(a));
            (*to, (if *infinite { v.is_infinite() } else { v.is_nan() }).into())
        }
        Op::Select { to, a, b, by } => (*to, if r[*by] != 0 { of(a) } else { of(b) }),
        Op::Convert { to_ty, from_ty, to, a } => (*to, convert(*to_ty, *from_ty, of(a))),
        Op::Increment { .. }
        | Op::Parameter { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::Read { .. } => return,
        Op::Add { .. } | Op::Barrier | Op::Meet | Op::MeetAny { .. } => return,
        Op::Branch { .. } | Op::Return => return,
    };
    r[to] = v;
}

/// A device's canonical NaN comes of every operation on NaNs.
fn narrow(v: f32) -> u64 {
    u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
}

fn float(ty: Type, v: u64) -> f64 {
    if ty.bits == 64 { f64::from_bits(v) } else { f64::from(f32::from_bits(v as u32)) }
}

fn convert(to: Type, from: Type, v: u64) -> u64 {
    match (to.class, from.class) {
        (Class::Float, Class::Float) if to.bits == 32 => narrow(from_half(v as u16)),
        (Class::Float, Class::Float) => u64::from(to_half(f32::from_bits(v as u32))),
        (_, Class::Signed) => from.signed(v) as u64 & to.mask(),
        _ => v & from.mask() & to.mask(),
    }
}

fn binary(what: Binary, ty: Type, a: u64, b: u64) -> u64 {
    if ty.class == Class::Float {
        return floats(what, ty, a, b);
    }
    let (a, b, signed) = (a & ty.mask(), b & ty.mask(), ty.class == Class::Signed);
    let less = if signed { ty.signed(a) < ty.signed(b) } else { a < b };
    let v = match what {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        // Of a division by 0 the result is not specified.
        Binary::Div => a.checked_div(b).unwrap_or(u64::MAX),
        Binary::Rem => a.checked_rem(b).unwrap_or(a),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        // Amounts above the size are as the size.
        Binary::Shl => a.checked_shl((b as u32).min(ty.bits)).unwrap_or(0),
        Binary::Shr if signed => (ty.signed(a) >> (b as u32).min(63)) as u64,
        Binary::Shr => a.checked_shr((b as u32).min(ty.bits)).unwrap_or(0),
        Binary::Min => {
            if less {
                a
            } else {
                b
            }
        }
        Binary::Max => {
            if less {
                b
            } else {
                a
            }
        }
        Binary::CopySign => a,
    };
    v & ty.mask()
}

fn floats(what: Binary, ty: Type, a: u64, b: u64) -> u64 {
    let sign = 1u64 << (ty.bits - 1);
    if what == Binary::CopySign {
        return a & sign | b & !sign & ty.mask();
    }
    if ty.bits == 32 {
        let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        return narrow(match what {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            _ => a * b,
        });
    }
    let (a, b) = (f64::from_bits(a), f64::from_bits(b));
    let v = match what {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        _ => a * b,
    };
    if v.is_nan() { 0x7fff_ffff_ffff_ffff } else { v.to_bits() }
}

fn set(compare: Compare, ty: Type, a: u64, b: u64) -> bool {
    let order = match ty.class {
        Class::Float => float(ty, a).partial_cmp(&float(ty, b)),
        Class::Signed => Some(ty.signed(a).cmp(&ty.signed(b))),
        _ => Some((a & ty.mask()).cmp(&(b & ty.mask()))),
    };
    // Of floats, all but these are false where one is NaN.
    order.is_some_and(|order| match compare {
        Compare::Lt => order.is_lt(),
        Compare::Le => order.is_le(),
        Compare::Gt => order.is_gt(),
        Compare::Ge => order.is_ge(),
        Compare::Eq => order.is_eq(),
        Compare::Ne => order.is_ne(),
    })
}
