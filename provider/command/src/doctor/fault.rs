//! The signal that ended a process, and where that was.

use serde_json::Value;

use super::cause::Cause;

/// Addresses of code that are shown of a stack.
const SHOWN: usize = 6;

/// A part of an object that a process has mapped to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    begin: u64,
    end: u64,
    offset: u64,
    path: String,
}

impl Object {
    /// A line of /proc/PID/maps, of code.
    pub fn parse(line: &str) -> Option<Object> {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (begin, end) = (hex(begin)?, hex(end)?);
        let is_code = words.next()?.contains('x');
        let offset = hex(words.next()?)?;
        let path = words.skip(2).collect::<Vec<_>>().join(" ");
        (is_code && path.starts_with('/')).then_some(Object { begin, end, offset, path })
    }
}

/// A signal that a process had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    pub signal: u64,
    pub thread: u64,
    pub address: u64,
    pc: u64,
    stack: Vec<u64>,
    pub objects: Vec<Object>,
}

/// An address as a place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place<'a> {
    path: &'a str,
    offset: u64,
}

impl Place<'_> {
    fn name(&self) -> String {
        format!("{}+{:#x}", self.path.rsplit('/').next().unwrap_or_default(), self.offset)
    }

    fn is_of_strait(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libstrait") || name.starts_with("libuct_strait")
    }
}

impl Fault {
    pub fn of(value: &Value) -> Fault {
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        let hex = |name: &str| u64::from_str_radix(value[name].as_str().unwrap_or_default(), 16).unwrap_or(0);
        let words = value["stack"].as_str().unwrap_or_default().split_whitespace();
        Fault {
            signal: number("signal"),
            thread: number("thread"),
            address: hex("address"),
            pc: hex("pc"),
            stack: words.filter_map(|word| u64::from_str_radix(word, 16).ok()).collect(),
            objects: Vec::new(),
        }
    }

    fn place(&self, at: u64) -> Option<Place<'_>> {
        let object = self.objects.iter().find(|o| (o.begin..o.end).contains(&at))?;
        Some(Place { path: &object.path, offset: at - object.begin + object.offset })
    }

    /// What is known of it, and what to do.
    pub fn cause(&self, name: &str, pid: u64) -> Cause {
        let signal = crate::run::signals::name(i32::try_from(self.signal).unwrap_or(0));
        let by =
            if self.thread == pid { "its main thread".into() } else { format!("thread {}", self.thread) };
        let mut text = format!("{name} was ended by {signal}, in {by}");
        if matches!(self.signal, 7 | 11) {
            text += &format!(" at the access of address {:#x}", self.address);
        }
        let at = self.place(self.pc);
        let on_stack: Vec<Place<'_>> = self.stack.iter().filter_map(|word| self.place(*word)).collect();
        let is_inside = at.as_ref().is_some_and(Place::is_of_strait);
        let is_below = on_stack.iter().take(SHOWN).any(Place::is_of_strait);
        let place = at.as_ref().map_or_else(|| format!("{:#x}, in no library", self.pc), Place::name);
        text += &match (is_inside, is_below) {
            (true, _) => format!(", inside Strait: {place}"),
            (false, true) => format!(", in {place}; addresses of Strait are on its stack"),
            (false, false) => format!(", outside of Strait: {place}"),
        };
        if !on_stack.is_empty() {
            let names: Vec<String> = on_stack.iter().take(SHOWN).map(Place::name).collect();
            text += &format!("; on the stack: {}", names.join(" "));
        }
        let line = at.as_ref().map_or_else(
            || "a core file and gdb show the call".into(),
            |at| format!("addr2line -f -e {} {:#x} names the line", crate::out::quoted(at.path), at.offset),
        );
        let todo = match is_inside || is_below {
            true => format!(
                "see whether the buffers that the program passes are there for as long as the operation; if they are, report \
                 it with this output ({line})"
            ),
            false => format!("it is the program's, or a library's of it: {line}"),
        };
        Cause { text, todo }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(pc: u64, stack: &str) -> Fault {
        let text = format!(
            "{{\"signal\":11,\"thread\":9,\"address\":\"8\",\"pc\":\"{pc:x}\",\"stack\":\"{stack}\"}}"
        );
        let mut fault = Fault::of(&serde_json::from_str(&text).unwrap());
        let maps = "1000-2000 r-xp 00000100 00:00 0   /p/my program\n2000-3000 r-xp 00001000 00:00 0 /x/libstrait-fi.so\n\
                    3000-4000 rw-p 00000000 00:00 0 /x/libstrait-fi.so\n5000-6000 r-xp 0 00:00 0 [vdso]\n";
        fault.objects = maps.lines().filter_map(Object::parse).collect();
        fault
    }

    #[test]
    fn the_place_is_named_as_inside_or_outside_of_strait() {
        let outside = fault(0x1005, "1 3005 1010 ").cause("rank 1", 9);
        assert!(
            outside.text.starts_with(
                "rank 1 was ended by signal 11, SIGSEGV, in its main thread at the access of address 0x8"
            ),
            "{outside:?}"
        );
        assert!(
            outside.text.contains("outside of Strait: my program+0x105; on the stack: my program+0x110"),
            "{outside:?}"
        );
        assert!(outside.todo.contains("addr2line -f -e '/p/my program' 0x105"), "{outside:?}");
        let inside = fault(0x2010, "").cause("rank 1", 8);
        assert!(
            inside.text.contains("in thread 9")
                && inside.text.contains("inside Strait: libstrait-fi.so+0x1010"),
            "{inside:?}"
        );
        let below = fault(0x1005, "1010 2020").cause("rank 1", 9);
        assert!(below.text.contains("addresses of Strait are on its stack"), "{below:?}");
        assert!(fault(0x9, "").cause("rank 1", 9).text.contains("0x9, in no library"));
    }
}
