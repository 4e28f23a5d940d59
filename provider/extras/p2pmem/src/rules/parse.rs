//! Reading rules.

use super::pattern::{Pattern, Target};
use super::rule::{Rule, Rules, Says, Scope};
use crate::error::Error;
use crate::publisher::Kind;

/// Most rules of a file.
const MOST_RULES: usize = 4096;

const VERBS: &str = "deny, prefer, require, max-distance, quota, pin";

impl Rules {
    /// Most bytes of a file of rules.
    pub const MOST_BYTES: usize = 1 << 20;

    /// Reads a text with a rule on each line. `#` begins a comment.
    pub fn parse(text: &str) -> Result<Rules, Error> {
        let mut rules = Rules::default();
        if text.len() > Rules::MOST_BYTES {
            let most = Rules::MOST_BYTES;
            return Err(Error::Rule(format!("rules: more than {most} bytes: that is no file of rules")));
        }
        for (n, line) in text.lines().enumerate() {
            rules.insert(line, n + 1)?;
        }
        Ok(rules)
    }

    /// Adds a rule behind the others.
    pub fn add(&mut self, text: &str) -> Result<(), Error> {
        match text.lines().count() {
            0 | 1 => self.insert(text, 0),
            _ => Err(Error::Rule(format!("{text:?}: one rule at a time"))),
        }
    }

    fn insert(&mut self, line: &str, number: usize) -> Result<(), Error> {
        let text = line.split('#').next().unwrap_or("").trim();
        let place = if number > 0 { format!("line {number}: ") } else { String::new() };
        let wrong = |what: String| Error::Rule(format!("{place}{text:?}: {what}"));
        if text.is_empty() {
            return Ok(());
        }
        if self.rules.len() >= MOST_RULES {
            return Err(wrong(format!("there are {MOST_RULES} rules already: join some by patterns")));
        }
        let (says, scope) = rule(text).map_err(wrong)?;
        self.rules.push(Rule { line: number, text: text.into(), says, scope });
        Ok(())
    }
}

fn rule(text: &str) -> Result<(Says, Scope), String> {
    let mut words = text.split_whitespace();
    let verb = words.next().unwrap_or("");
    let (mut plain, mut scope, mut map) = (None, Scope::default(), None);
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            if plain.replace(word).is_some() {
                return Err(format!("{word}: all but one word are of the form key=value"));
            }
            continue;
        };
        if value.is_empty() {
            return Err(format!("{key}= wants a value"));
        }
        let twice = match key {
            "publisher" => scope.publisher.replace(target(value)?).is_some(),
            "client" => scope.client.replace(Pattern(value.into())).is_some(),
            "job" => scope.job.replace(Pattern(value.into())).is_some(),
            "uid" => scope.uid.replace(uid(value)?).is_some(),
            "map" => map.replace(value).is_some(),
            _ => {
                return Err(format!("{key}: the keys are publisher, client, uid, job, and map with require"));
            }
        };
        if twice {
            return Err(format!("{key} is there twice: write two rules"));
        }
    }
    if map.is_some() && verb != "require" {
        return Err(format!("map= goes with require, not with {verb}"));
    }
    let number = |missing: &str| plain.ok_or_else(|| missing.to_owned());
    let says = match verb {
        "deny" => Says::Deny,
        "prefer" => Says::Prefer,
        "pin" => Says::Pin,
        "require" => match map {
            Some("bus-address") => Says::RequireBus,
            Some("peer") => Says::RequirePeer,
            other => return Err(format!("require wants map=bus-address or map=peer, not {other:?}")),
        },
        "max-distance" => {
            let most = number("max-distance wants a number of steps, as `strait topo` prints them")?;
            Says::MaxDistance(most.parse().map_err(|_| format!("{most}: no number of steps"))?)
        }
        "quota" => Says::Quota(size(number("quota wants a size such as 64MiB")?)?),
        _ => return Err(format!("{verb}: the rules are {VERBS}")),
    };
    let is_limit = matches!(says, Says::MaxDistance(_) | Says::Quota(_));
    if let Some(word) = plain.filter(|_| !is_limit) {
        return Err(format!("{word}: not of the form key=value"));
    }
    if matches!(says, Says::Prefer | Says::Pin) && scope.publisher.is_none() {
        return Err(format!("{verb} wants publisher=NAME or publisher=kind:KIND"));
    }
    if says == Says::Deny && scope == Scope::default() {
        return Err("deny without a scope would deny all; `deny publisher=*` says that".into());
    }
    if matches!(says, Says::Quota(_)) && (scope.client.is_some() || scope.job.is_some()) {
        return Err("a quota is of a user: use uid= and publisher= alone".into());
    }
    Ok((says, scope))
}

fn target(value: &str) -> Result<Target, String> {
    match value.strip_prefix("kind:") {
        None => Ok(Target::Name(Pattern(value.into()))),
        Some(kind) if Kind::NAMES.contains(&kind) => Ok(Target::Kind(kind.into())),
        Some(kind) => Err(format!("{kind}: the kinds are {}", Kind::NAMES.join(", "))),
    }
}

fn uid(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("uid={value}: a user's number is wanted (`id -u NAME` prints it)"))
}

/// A number of bytes: plain, or with KiB, MiB, GiB, TiB or K, M, G, T for the same.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].trim_end_matches("iB") {
        "" if !text.ends_with("iB") => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text}: a size is a number with KiB, MiB, GiB or TiB")),
    };
    let value = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    value.ok_or_else(|| format!("{text}: a size is a number with KiB, MiB, GiB or TiB"))
}
