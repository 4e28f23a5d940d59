//! Values as text, and what is said of those that are none.

use std::ffi::OsString;
use std::fmt;

use crate::table::{Kind, RING_SIZE, Setting};
use crate::words;

/// What a parameter was set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes, milliseconds or a number of things.
    Number(u64),
    /// Yes or no.
    Switch(bool),
    /// The first and the last port.
    Ports(u16, u16),
}

/// What came of a variable's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What holds; `None`: the default.
    pub value: Option<Value>,
    /// What is wrong with the text, what holds instead, and what may be given.
    pub complaint: Option<String>,
}

impl Reading {
    /// The number, of a parameter that takes one.
    pub fn number(&self) -> Option<u64> {
        match self.value {
            Some(Value::Number(n)) => Some(n),
            _ => None,
        }
    }

    /// The first and the last port, of a parameter that takes them.
    pub fn ports(&self) -> Option<(u16, u16)> {
        match self.value {
            Some(Value::Ports(first, last)) => Some((first, last)),
            _ => None,
        }
    }

    /// Cuts a number to what fits a frame of the ring.
    pub fn fit(&mut self, setting: &Setting, fits: u64) {
        let Some(asked) = self.number().filter(|n| *n > fits) else { return };
        let (variable, ring) = (setting.variable(), RING_SIZE.variable());
        self.value = Some(Value::Number(fits));
        self.complaint = Some(format!(
            "{variable}={asked} is more than fits a frame of the ring, and {fits} is used; a longer ring ({ring}) has \
             longer frames"
        ));
    }

    /// Yes or no, of a parameter that takes that.
    pub fn switch(&self) -> Option<bool> {
        match self.value {
            Some(Value::Switch(on)) => Some(on),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => n.fmt(f),
            Value::Switch(on) => f.write_str(if *on { "yes" } else { "no" }),
            Value::Ports(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl Setting {
    /// The variable's text, or what is said of a value that is none: not what it is, which may be a secret.
    pub fn text(&self, value: OsString) -> Result<String, String> {
        value.into_string().map_err(|_| {
            let (variable, default) = (self.variable(), self.default);
            format!("{variable} is no text in UTF-8, and the default is used ({default})")
        })
    }

    /// Reads the variable's text, without a look at files and devices that it names ([`Setting::check`]).
    /// Nothing in it is as if it were not set.
    pub fn read(&self, text: &str) -> Reading {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Reading::default();
        }
        let (range, units): (_, fn(&str) -> Option<u64>) = match self.kind {
            Kind::Switch => return self.read_switch(text, trimmed),
            Kind::Ports => return self.read_ports(text, trimmed),
            Kind::Bytes { least, most } => (least..=most, bytes),
            Kind::Millis { least, most } | Kind::Count { least, most } | Kind::Seconds { least, most } => {
                (least..=most, digits)
            }
            _ => {
                return words::problem(self.kind, trimmed)
                    .map_or_else(Reading::default, |why| self.wrong(text, &why));
            }
        };
        let Some(n) = units(trimmed) else { return self.not_understood(text) };
        let used = n.clamp(*range.start(), *range.end());
        let complaint = (used != n).then(|| {
            let how = if used < n { "more than" } else { "less than" };
            let limit = if used < n { "the most" } else { "the least" };
            format!("{}={text} is {how} {limit}, and {used} is used; it takes {}", self.variable(), self.kind)
        });
        Reading { value: Some(Value::Number(used)), complaint }
    }

    fn read_switch(&self, text: &str, trimmed: &str) -> Reading {
        let Some(on) = words::switch(trimmed) else { return self.not_understood(text) };
        Reading { value: Some(Value::Switch(on)), complaint: None }
    }

    fn read_ports(&self, text: &str, trimmed: &str) -> Reading {
        let port = |text: &str| digits(text.trim()).and_then(|n| u16::try_from(n).ok());
        let (first, last) = trimmed.split_once('-').unwrap_or((trimmed, trimmed));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first < 1024 || last < first => {
                let why = if first < 1024 {
                    "ports below 1024 are the system's"
                } else {
                    "the last port is before the first"
                };
                self.wrong(text, why)
            }
            (Some(first), Some(last)) => Reading { value: Some(Value::Ports(first, last)), complaint: None },
            _ => self.not_understood(text),
        }
    }

    /// Reads the variable's text, and looks whether the files and devices that it names are there.
    pub fn check(&self, text: &str) -> Reading {
        let trimmed = text.trim();
        let mut reading = self.read(text);
        if reading.complaint.is_none() && !trimmed.is_empty() {
            let (variable, kind) = (self.variable(), self.kind);
            reading.complaint = words::absent(kind, trimmed)
                .map(|why| format!("{variable}={text} is of no use: {why}; it takes {kind}"));
        }
        reading
    }

    /// `why` is nothing where there is no more to say than what is taken.
    fn wrong(&self, text: &str, why: &str) -> Reading {
        let (variable, default, kind) = (self.variable(), self.default, self.kind);
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        let complaint = format!(
            "{variable}={text} is not understood{why}, and the default is used ({default}); it takes {kind}"
        );
        Reading { value: None, complaint: Some(complaint) }
    }

    fn not_understood(&self, text: &str) -> Reading {
        self.wrong(text, "")
    }
}

/// A number of digits alone; more than fits is the most.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    all.then(|| text.parse().unwrap_or(u64::MAX))
}

/// A number of bytes: `65536`, `64K`, `64k`, `64KiB`.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    Some(digits(number)?.saturating_mul(1 << shift))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::others::OTHERS;
    use crate::table::{ALL, CMA, CONNECT_TIMEOUT, EAGER_SIZE, PORTS, UNEXPECTED_SIZE};

    #[test]
    fn a_value_that_is_no_text_is_reported_and_not_shown() {
        for setting in ALL {
            assert_eq!(setting.text("a text".into()), Ok("a text".to_owned()));
            let complaint = setting.text(OsString::from_vec(b"se\xffcret".to_vec())).unwrap_err();
            assert!(complaint.starts_with(&format!("{} is no text", setting.variable())), "{complaint}");
            assert!(!complaint.contains("cret"), "{complaint}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, n) in [
            ("65536", 65536),
            ("1M", 1 << 20),
            ("1m", 1 << 20),
            ("64K", 65536),
            (" 64KiB ", 65536),
            ("64 kib", 65536),
            ("2MiB", 2 << 20),
        ] {
            assert_eq!(
                RING_SIZE.read(text),
                Reading { value: Some(Value::Number(n)), complaint: None },
                "{text}"
            );
        }
        assert_eq!(UNEXPECTED_SIZE.read("4G").number(), Some(4 << 30));
        assert_eq!(EAGER_SIZE.read("0").number(), Some(0));
        assert_eq!(RING_SIZE.read("").value, None);
        assert_eq!(RING_SIZE.read(" ").complaint, None);
    }

    #[test]
    fn what_is_no_value_is_reported_and_ignored() {
        let bad = ["abc", "-5", "1.5M", "K", "1KB", "0x10", "1 M M", "+1", "1T", "١"];
        for text in bad {
            let r = RING_SIZE.read(text);
            let complaint = r.complaint.unwrap();
            assert_eq!(r.value, None, "{text}");
            assert!(complaint.contains(&format!("FI_STRAIT_RING_SIZE={text} ")), "{complaint}");
            assert!(complaint.contains("520192") && complaint.contains("24K to 16M"), "{complaint}");
        }
        assert!(CONNECT_TIMEOUT.read("3s").complaint.unwrap().contains("milliseconds from 0"));
        let complaint = CMA.read("maybe").complaint.unwrap();
        assert!(
            complaint.contains("default is used (yes)") && complaint.contains("yes or no"),
            "{complaint}"
        );
    }

    #[test]
    fn what_is_out_of_range_is_cut_and_reported() {
        for (text, used, how) in [
            ("1K", 24576, "less than the least"),
            ("99999999999", 16 << 20, "more than the most"),
            ("99999999999999999999999", 16 << 20, "more than the most"),
            ("99999999999999999G", 16 << 20, "more than the most"),
        ] {
            let r = RING_SIZE.read(text);
            let complaint = r.complaint.clone().unwrap();
            assert_eq!(r.number(), Some(used));
            assert!(
                complaint.contains(how)
                    && complaint.contains(&used.to_string())
                    && complaint.contains("24K to 16M"),
                "{complaint}"
            );
        }
    }

    #[test]
    fn switches() {
        for (text, on) in
            [("yes", true), ("1", true), ("On", true), ("no", false), ("0", false), ("FALSE", false)]
        {
            assert_eq!(CMA.read(text).switch(), Some(on));
            assert_eq!(CMA.read(text).complaint, None);
        }
    }

    #[test]
    fn ports_are_a_range() {
        assert_eq!(PORTS.read(" 40000 - 40999 ").ports(), Some((40000, 40999)));
        assert_eq!(PORTS.read("40000").ports(), Some((40000, 40000)));
        assert_eq!(PORTS.read("40000-40999").value.unwrap().to_string(), "40000-40999");
        for (text, word) in [
            ("40999-40000", "the last port is before the first"),
            ("80-90", "the system's"),
            ("40000-70000", "is not understood, and"),
            ("40000:40999", "such as 40000-40999"),
            ("all", "any free port"),
        ] {
            let r = PORTS.read(text);
            assert!(r.value.is_none() && r.complaint.as_ref().unwrap().contains(word), "{r:?}");
        }
    }

    #[test]
    fn nothing_that_is_given_is_lost_in_silence() {
        // The program that reads a text judges it, and a file may have any name.
        let any = |kind| {
            matches!(
                kind,
                Kind::Text(_)
                    | Kind::Secret(_)
                    | Kind::Output(_)
                    | Kind::Input(_)
                    | Kind::Device
                    | Kind::Program
            )
        };
        let all = ALL.iter().chain(OTHERS);
        for s in all.filter(|s| !any(s.kind) && *s != &crate::ALIAS) {
            for text in ["abc", "-1", "1e3", "99999999999999999999999999"] {
                let r = s.read(text);
                assert!(r.complaint.is_some(), "{}={text}: {:?}", s.name, r.value);
            }
        }
    }
}
