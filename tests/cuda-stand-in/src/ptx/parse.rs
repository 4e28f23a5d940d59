//! The text of a module, one statement a line.

use std::collections::HashMap;

use super::op::{Arg, Binary, Class, Compare, Instruction, Kernel, Op, Reg, Special, Type};

/// A kernel as it is read.
#[derive(Default)]
struct Reading {
    name: String,
    parameters: Vec<String>,
    registers: HashMap<String, (Reg, Type)>,
    labels: HashMap<String, usize>,
    /// Instructions that branch, and where to.
    branches: Vec<(usize, String)>,
    code: Vec<Instruction>,
}

/// All kernels of a module; in `Err`, the line that is not known here.
pub(crate) fn parse(text: &str) -> Result<Vec<Kernel>, String> {
    let (mut kernels, mut reading, mut seen) = (Vec::new(), None::<Reading>, 0);
    for (number, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let failed = |why: String| format!("line {}: {why}: {line}", number + 1);
        if line.is_empty() || line == "{" {
            continue;
        }
        if let Some(rest) = line.strip_prefix(".visible .entry ") {
            if seen != 7 || reading.is_some() {
                return Err(failed(
                    "an entry without .version, .target and .address_size, or in another".into(),
                ));
            }
            reading = Some(entry(rest).map_err(failed)?);
            continue;
        }
        let Some(of) = &mut reading else {
            seen |= directive(line).map_err(failed)?;
            continue;
        };
        if line == "}" {
            kernels.extend(reading.take().map(Reading::end).transpose()?);
            continue;
        }
        of.line(line).map_err(failed)?;
    }
    if reading.is_some() || kernels.is_empty() {
        Err("no kernel, or no end of one".into())
    } else {
        Ok(kernels)
    }
}

fn directive(line: &str) -> Result<u32, String> {
    let mut words = line.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(".version"), Some(v), None) => {
            let known = v.split_once('.').and_then(|(a, _)| a.parse::<u32>().ok()).is_some_and(|v| v >= 5);
            if known { Ok(1) } else { Err("unknown version".into()) }
        }
        (Some(".target"), Some(t), None) if t.starts_with("sm_") => Ok(2),
        (Some(".address_size"), Some("64"), None) => Ok(4),
        _ => Err("unknown directive".into()),
    }
}

/// `name(.param .u64 a, .param .u64 b)`.
fn entry(text: &str) -> Result<Reading, String> {
    let (name, rest) = text.split_once('(').ok_or("no parameters")?;
    let list = rest.strip_suffix(')').ok_or("the parameters do not end on this line")?;
    let parameter = |p: &str| p.trim().strip_prefix(".param .u64 ").map(str::to_owned);
    let parameters: Option<_> = list.split(',').map(parameter).collect();
    let parameters = parameters.ok_or("a parameter that is not .u64")?;
    Ok(Reading { name: name.to_owned(), parameters, ..Reading::default() })
}

impl Reading {
    fn end(mut self) -> Result<Kernel, String> {
        for (at, label) in &self.branches {
            let to = *self.labels.get(label).ok_or_else(|| format!("{}: no label {label}", self.name))?;
            self.code[*at].op = Op::Branch { to };
        }
        let registers = self.registers.len();
        let waits = self.code.iter().any(|i| matches!(i.op, Op::Load { acquires: true, .. }));
        Ok(Kernel { name: self.name, parameters: self.parameters, code: self.code, registers, waits })
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(label) = line.strip_suffix(':') {
            return match self.labels.insert(label.to_owned(), self.code.len()) {
                None => Ok(()),
                Some(_) => Err("a label twice".into()),
            };
        }
        let line = line.strip_suffix(';').ok_or("no semicolon")?;
        if let Some(rest) = line.strip_prefix(".reg .") {
            return self.declare(rest);
        }
        let (guard, line) = match line.strip_prefix('@') {
            None => (None, line),
            Some(rest) => {
                let (by, rest) = rest.split_once(' ').ok_or("a guard alone")?;
                let wanted = !by.starts_with('!');
                (Some((self.sized(by.trim_start_matches('!'), 1)?, wanted)), rest.trim())
            }
        };
        let (name, operands) = line.split_once(' ').unwrap_or((line, ""));
        let parts: Vec<&str> = name.split('.').collect();
        let op = self.op(&parts, &split(operands))?;
        self.code.push(Instruction { guard, op });
        Ok(())
    }

    /// `b32 %r<9>`.
    fn declare(&mut self, text: &str) -> Result<(), String> {
        let (ty, rest) = text.split_once(' ').ok_or("no register")?;
        let ty = Type::parse(ty).filter(|t| t.bits != 8).ok_or("unknown type")?;
        let (name, count) = rest.trim().split_once('<').ok_or("no count")?;
        let count: usize = count.strip_suffix('>').and_then(|c| c.parse().ok()).ok_or("no count")?;
        for i in 0..count {
            let next = self.registers.len();
            if self.registers.insert(format!("{name}{i}"), (next, ty)).is_some() {
                return Err("a register twice".into());
            }
        }
        Ok(())
    }

    fn register(&self, name: &str) -> Result<(Reg, Type), String> {
        self.registers.get(name).copied().ok_or_else(|| format!("no register {name}"))
    }

    /// A register of just that size.
    fn sized(&self, name: &str, bits: u32) -> Result<Reg, String> {
        let (reg, ty) = self.register(name)?;
        if ty.bits == bits { Ok(reg) } else { Err(format!("{name} has {} bits, not {bits}", ty.bits)) }
    }

    /// A register of at least that size, of what 16 bits are the least.
    fn wide(&self, name: &str, bits: u32) -> Result<Reg, String> {
        let (reg, ty) = self.register(name)?;
        if ty.bits >= bits.max(16) { Ok(reg) } else { Err(format!("{name} is too small")) }
    }

    fn arg(&self, text: &str, ty: Type) -> Result<Arg, String> {
        if text.starts_with('%') {
            return self.sized(text, ty.bits).map(Arg::Reg);
        }
        let value = match (text.strip_prefix("0x"), text.strip_prefix("0f"), text.strip_prefix("0d")) {
            (Some(hex), _, _) if ty.class != Class::Float => u64::from_str_radix(hex, 16).ok(),
            (_, Some(hex), _) if ty.bits == 32 && hex.len() == 8 => u64::from_str_radix(hex, 16).ok(),
            (_, _, Some(hex)) if ty.bits == 64 && hex.len() == 16 => u64::from_str_radix(hex, 16).ok(),
            _ if ty.class != Class::Float => text.parse::<i64>().ok().map(|v| v as u64 & ty.mask()),
            _ => None,
        };
        value.map(Arg::Value).ok_or_else(|| format!("no operand of that type: {text}"))
    }

    /// `[%rd1+8]`.
    fn place(&self, text: &str) -> Result<(Reg, i64), String> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).ok_or("no address")?;
        let (reg, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        Ok((self.sized(reg, 64)?, offset.parse().map_err(|_| "no offset")?))
    }

    /// `{%r1, %r2}` or one register.
    fn several(&self, text: &str, n: usize, bits: u32) -> Result<Vec<Reg>, String> {
        let all = match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
            Some(list) if n > 1 => list.split(',').map(|r| self.wide(r.trim(), bits)).collect(),
            None if n == 1 => self.wide(text, bits).map(|r| vec![r]),
            _ => Err("vector of the wrong length".into()),
        };
        all.and_then(|all| if all.len() == n { Ok(all) } else { Err("vector of the wrong length".into()) })
    }

    fn op(&mut self, parts: &[&str], operands: &[String]) -> Result<Op, String> {
        let o: Vec<&str> = operands.iter().map(String::as_str).collect();
        let last = parts.last().and_then(|t| Type::parse(t));
        match (parts, o.as_slice()) {
            (["ret"], []) => Ok(Op::Return),
            (["bra"], [label]) | (["bra", "uni"], [label]) => {
                self.branches.push((self.code.len(), (*label).to_owned()));
                Ok(Op::Return)
            }
            (["ld", "param", "u64"], [to, from]) => {
                let name = from.strip_prefix('[').and_then(|f| f.strip_suffix(']')).ok_or("no parameter")?;
                let number = self.parameters.iter().position(|p| p == name).ok_or("no such parameter")?;
                Ok(Op::Parameter { to: self.sized(to, 64)?, number })
            }
            (
                ["ld", "global", "cg", rest @ ..]
                | ["ld", "global", rest @ ..]
                | ["ld", "volatile", "global", rest @ ..]
                | ["ld", "acquire", "sys", "global", rest @ ..],
                [to, at],
            ) => {
                let (ty, n) = vector(rest)?;
                let (at, offset) = self.place(at)?;
                let acquires = parts[1] == "acquire";
                Ok(Op::Load { ty, to: self.several(to, n, ty.bits)?, at, offset, acquires })
            }
            (["st", "global", rest @ ..] | ["st", "volatile", "global", rest @ ..], [at, from]) => {
                let (ty, n) = vector(rest)?;
                let (at, offset) = self.place(at)?;
                Ok(Op::Store { ty, from: self.several(from, n, ty.bits)?, at, offset })
            }
            (["membar", "sys"] | ["fence", "acq_rel", "sys"], []) => Ok(Op::Barrier),
            (["bar", "sync"], ["0"]) => Ok(Op::Meet),
            (["bar", "red", "or", "pred"], [to, "0", from]) => {
                Ok(Op::MeetAny { to: self.sized(to, 1)?, from: self.sized(from, 1)? })
            }
            (["red", "sys", "global", "add", _], [at, from]) => {
                let ty = last.filter(|t| t.class == Class::Unsigned && t.bits >= 32).ok_or("unknown type")?;
                let (at, offset) = self.place(at)?;
                Ok(Op::Add { ty, to: None, from: self.arg(from, ty)?, at, offset })
            }
            (["atom", "acq_rel", "gpu", "global", "add", "u64"], [to, at, from]) => {
                let ty = last.ok_or("unknown type")?;
                let (at, offset) = self.place(at)?;
                Ok(Op::Add { ty, to: Some(self.sized(to, 64)?), from: self.arg(from, ty)?, at, offset })
            }
            (["atom", "global", "inc", "u32"], [to, at, most]) => {
                let ty = Type { class: Class::Unsigned, bits: 32 };
                let (at, offset) = self.place(at)?;
                Ok(Op::Increment { to: self.sized(to, 32)?, at, offset, most: self.arg(most, ty)? })
            }
            (["mov", "b32"], [to, from]) if from.starts_with('{') => {
                let inner = from.trim_matches(['{', '}']);
                let (low, high) = inner.split_once(',').ok_or("not two registers")?;
                let (low, high) = (self.sized(low.trim(), 16)?, self.sized(high.trim(), 16)?);
                Ok(Op::Join { to: self.sized(to, 32)?, low, high })
            }
            (["mov", "b32"], [to, from]) if to.starts_with('{') => {
                let inner = to.trim_matches(['{', '}']);
                let (low, high) = inner.split_once(',').ok_or("not two registers")?;
                let (low, high) = (self.sized(low.trim(), 16)?, self.sized(high.trim(), 16)?);
                Ok(Op::Split { low, high, from: self.sized(from, 32)? })
            }
            (["mov", "u32"], [to, from]) if special(from).is_some() => {
                let from = special(from).ok_or("no such register")?;
                Ok(Op::Read { to: self.sized(to, 32)?, from })
            }
            (["mov", _], [to, from]) => {
                let ty = last.filter(|t| t.bits > 8).ok_or("unknown type")?;
                Ok(Op::Move { to: self.sized(to, ty.bits)?, from: self.arg(from, ty)? })
            }
            (["mul", "wide", "u32"], [to, a, b]) => {
                let ty = Type { class: Class::Unsigned, bits: 32 };
                Ok(Op::MulWide { to: self.sized(to, 64)?, a: self.arg(a, ty)?, b: self.arg(b, ty)? })
            }
            (["not", _], [to, a]) => {
                let ty = last
                    .filter(|t| matches!(t.class, Class::Bits | Class::Predicate))
                    .ok_or("unknown type")?;
                Ok(Op::Not { ty, to: self.sized(to, ty.bits)?, a: self.arg(a, ty)? })
            }
            (["bfe", "u32" | "s32"], [to, a, at, len]) => {
                let ty = last.ok_or("unknown type")?;
                let (at, len) = (self.arg(at, ty)?, self.arg(len, ty)?);
                Ok(Op::Extract { ty, to: self.sized(to, 32)?, a: self.arg(a, ty)?, at, len })
            }
            (["bfi", "b32"], [to, a, b, at, len]) => {
                let ty = last.ok_or("unknown type")?;
                let (a, b, at, len) =
                    (self.arg(a, ty)?, self.arg(b, ty)?, self.arg(at, ty)?, self.arg(len, ty)?);
                Ok(Op::Insert { to: self.sized(to, 32)?, a, b, at, len })
            }
            (["setp", compare, _], [to, a, b]) => {
                let ty = last.filter(|t| t.bits > 16).ok_or("unknown type")?;
                let compare = comparison(compare, ty)?;
                Ok(Op::Set { compare, ty, to: self.sized(to, 1)?, a: self.arg(a, ty)?, b: self.arg(b, ty)? })
            }
            (["testp", what @ ("infinite" | "notanumber"), "f32" | "f64"], [to, a]) => {
                let ty = last.ok_or("unknown type")?;
                let infinite = *what == "infinite";
                Ok(Op::Test { infinite, ty, to: self.sized(to, 1)?, a: self.arg(a, ty)? })
            }
            (["selp", _], [to, a, b, by]) => {
                let ty = last.filter(|t| t.bits > 8).ok_or("unknown type")?;
                let (a, b, by) = (self.arg(a, ty)?, self.arg(b, ty)?, self.sized(by, 1)?);
                Ok(Op::Select { to: self.sized(to, ty.bits)?, a, b, by })
            }
            (["cvt", rest @ ..], [to, a]) => self.convert(rest, to, a),
            (_, [to, a, b]) => self.binary(parts, to, a, b),
            _ => Err("unknown instruction".into()),
        }
    }

    fn convert(&self, parts: &[&str], to: &str, a: &str) -> Result<Op, String> {
        let types = |t: &str, f: &str| Type::parse(t).zip(Type::parse(f)).ok_or("unknown type");
        let (to_ty, from_ty) = match parts {
            ["rn", "f16", "f32"] => types("f16", "f32")?,
            ["f32", "f16"] => types("f32", "f16")?,
            [t, f] if !t.starts_with('f') && !f.starts_with('f') => types(t, f)?,
            _ => return Err("unknown conversion".into()),
        };
        let from = self.wide(a, from_ty.bits)?;
        Ok(Op::Convert { to_ty, from_ty, to: self.wide(to, to_ty.bits)?, a: Arg::Reg(from) })
    }

    fn binary(&self, parts: &[&str], to: &str, a: &str, b: &str) -> Result<Op, String> {
        let ty = parts.last().and_then(|t| Type::parse(t)).ok_or("unknown instruction")?;
        let what = match (parts, ty.class, ty.bits) {
            (["add", "rn", _], Class::Float, 32 | 64) => Binary::Add,
            (["sub", "rn", _], Class::Float, 32 | 64) => Binary::Sub,
            (["mul", "rn", _], Class::Float, 32 | 64) => Binary::Mul,
            (["copysign", _], Class::Float, 32 | 64) => Binary::CopySign,
            (["add", _], Class::Unsigned | Class::Signed, 32 | 64) => Binary::Add,
            (["sub", _], Class::Unsigned | Class::Signed, 32 | 64) => Binary::Sub,
            (["mul", "lo", _], Class::Unsigned | Class::Signed, 32 | 64) => Binary::Mul,
            (["div", _], Class::Unsigned, 32 | 64) => Binary::Div,
            (["rem", _], Class::Unsigned, 32 | 64) => Binary::Rem,
            (["min", _], Class::Unsigned | Class::Signed, 32 | 64) => Binary::Min,
            (["max", _], Class::Unsigned | Class::Signed, 32 | 64) => Binary::Max,
            (["and", _], Class::Bits | Class::Predicate, _) => Binary::And,
            (["or", _], Class::Bits | Class::Predicate, _) => Binary::Or,
            (["xor", _], Class::Bits | Class::Predicate, _) => Binary::Xor,
            (["shl", _], Class::Bits, _) => Binary::Shl,
            (["shr", _], Class::Unsigned | Class::Signed | Class::Bits, _) => Binary::Shr,
            _ => return Err("unknown instruction".into()),
        };
        let amount = Type { class: Class::Unsigned, bits: 32 };
        let b = self.arg(b, if matches!(what, Binary::Shl | Binary::Shr) { amount } else { ty })?;
        Ok(Op::Binary { what, ty, to: self.sized(to, ty.bits)?, a: self.arg(a, ty)?, b })
    }
}

/// `v4.b32` or `b32`.
fn vector(parts: &[&str]) -> Result<(Type, usize), String> {
    let (ty, n) = match parts {
        [ty] => (ty, 1),
        ["v2", ty] => (ty, 2),
        ["v4", ty] => (ty, 4),
        _ => return Err("unknown access".into()),
    };
    let ty = Type::parse(ty).filter(|t| t.bits as usize * n <= 128 && t.bits > 1).ok_or("unknown type")?;
    Ok((ty, n))
}

fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => Special::Thread,
        "%ctaid.x" => Special::Block,
        "%ntid.x" => Special::Threads,
        "%nctaid.x" => Special::Blocks,
        _ => return None,
    })
}

fn comparison(name: &str, ty: Type) -> Result<Compare, String> {
    let order = ty.class != Class::Bits;
    Ok(match name {
        "eq" => Compare::Eq,
        "ne" => Compare::Ne,
        "lt" if order => Compare::Lt,
        "le" if order => Compare::Le,
        "gt" if order => Compare::Gt,
        "ge" if order => Compare::Ge,
        _ => return Err("unknown comparison".into()),
    })
}

/// Operands, at the commas that are not inside braces.
fn split(text: &str) -> Vec<String> {
    let (mut all, mut depth) = (vec![String::new()], 0);
    for c in text.trim().chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    all.iter().map(|o| o.trim().to_owned()).filter(|o| !o.is_empty()).collect()
}
