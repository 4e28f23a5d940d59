//! The provider's parameters as they hold here.

use serde::Serialize;
use settings::{Kind, Setting, Value};

use crate::fabric::Param;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Default,
    Environment,
    /// libfabric has it from elsewhere, such as a file of its own.
    Libfabric,
}

/// A parameter, and what it is set to.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    pub name: String,
    /// What holds.
    pub value: String,
    pub source: Source,
    /// What it was set to, as it was written.
    pub set: Option<String>,
    /// Why that is not what holds.
    pub problem: Option<String>,
    /// What may be given.
    pub takes: String,
    pub help: &'static str,
}

/// All of them. `known`: those that are defined with libfabric, with its values.
pub fn all(known: &[Param]) -> Vec<Parameter> {
    read(|setting| {
        let name = setting.variable();
        match std::env::var_os(&name) {
            Some(value) => Some((value.to_string_lossy().into_owned(), Source::Environment)),
            None => {
                let value = known.iter().find(|p| p.name == name).and_then(|p| p.value.clone());
                value.map(|value| (value, Source::Libfabric))
            }
        }
    })
}

fn read(set: impl Fn(&Setting) -> Option<(String, Source)>) -> Vec<Parameter> {
    let reading = |setting: &Setting| set(setting).map(|(text, _)| setting.check(&text)).unwrap_or_default();
    let cma = reading(&settings::CMA).switch().unwrap_or(true);
    let ring = reading(&settings::RING_SIZE).number().and_then(|n| usize::try_from(n).ok());
    let fits = link::eager_most(ring.unwrap_or(link::DEFAULT_RING)) as u64;
    settings::ALL
        .iter()
        .map(|setting| {
            let value_set = set(setting);
            let is_eager = *setting == settings::EAGER_SIZE;
            let mut reading = reading(setting);
            if is_eager {
                reading.fit(setting, fits);
            }
            let is_secret = matches!(setting.kind, Kind::Secret(_));
            let value_set = value_set.map(|(text, source)| match text.trim().is_empty() {
                false if is_secret => ("(not shown)".to_owned(), source),
                _ => (text, source),
            });
            let text = value_set.as_ref().map(|(text, _)| text.trim()).filter(|t| !t.is_empty());
            let is_word = !matches!(
                setting.kind,
                Kind::Bytes { .. } | Kind::Millis { .. } | Kind::Count { .. } | Kind::Switch | Kind::Ports
            );
            // What is not understood leaves the default.
            let text = text.filter(|text| is_word && setting.read(text).complaint.is_none());
            let value = match reading.value {
                Some(value) => value.to_string(),
                None if text.is_some() => text.unwrap_or_default().into(),
                // It goes by how quick copies between processes are here.
                None if is_eager && cma => Value::Number(link::eager_size() as u64).to_string(),
                None if is_eager => "8192".into(),
                None => setting.default.into(),
            };
            let source = match (&value_set, reading.value) {
                (Some((_, source)), Some(_)) => *source,
                (Some((_, source)), None) if text.is_some() => *source,
                _ => Source::Default,
            };
            Parameter {
                name: setting.variable(),
                value,
                source,
                set: value_set.map(|(text, _)| text),
                problem: reading.complaint,
                takes: setting.kind.to_string(),
                help: setting.help,
            }
        })
        .collect()
}

/// What is wrong with the names of other variables that begin like those of parameters.
pub fn unknown() -> Vec<String> {
    let names: Vec<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    settings::unknown(names.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Vec<Parameter> {
        read(|s| {
            let set = pairs.iter().find(|(name, _)| *name == s.name);
            set.map(|(_, text)| ((*text).to_owned(), Source::Environment))
        })
    }

    fn of<'a>(all: &'a [Parameter], name: &str) -> &'a Parameter {
        all.iter().find(|p| p.name == name).unwrap()
    }

    #[test]
    fn text_holds_as_it_was_given() {
        let all = with(&[("nic", " eth0 "), ("alias", "")]);
        let (nic, alias) = (of(&all, "FI_STRAIT_NIC"), of(&all, "FI_STRAIT_ALIAS"));
        assert_eq!((nic.value.as_str(), nic.source), ("eth0", Source::Environment));
        assert_eq!((alias.value.as_str(), alias.source), ("none", Source::Default));
    }

    #[test]
    fn a_secret_is_not_shown() {
        let all = with(&[("job_key", "abracadabra")]);
        let key = of(&all, "FI_STRAIT_JOB_KEY");
        assert_eq!((&*key.value, key.source), ("(not shown)", Source::Environment));
        assert!(!format!("{all:?}").contains("abracadabra"));
        assert_ne!(of(&with(&[]), "FI_STRAIT_JOB_KEY").value, "(not shown)");
    }

    #[test]
    fn what_holds_and_why() {
        let all = with(&[("ring_size", "1M"), ("inject_size", "abc"), ("connect_timeout", "99999999999999")]);
        assert_eq!(all.len(), settings::ALL.len());
        let ring = of(&all, "FI_STRAIT_RING_SIZE");
        assert_eq!(
            (&*ring.value, ring.source, ring.set.as_deref()),
            ("1048576", Source::Environment, Some("1M"))
        );
        let inject = of(&all, "FI_STRAIT_INJECT_SIZE");
        assert_eq!((&*inject.value, inject.source), ("4096", Source::Default));
        assert!(inject.problem.as_ref().is_some_and(|p| p.contains("abc")));
        let timeout = of(&all, "FI_STRAIT_CONNECT_TIMEOUT");
        assert_eq!((&*timeout.value, timeout.source), ("86400000", Source::Environment));
        assert!(timeout.problem.is_some());
        let cma = of(&all, "FI_STRAIT_CMA");
        assert_eq!((&*cma.value, cma.source, &cma.problem), ("yes", Source::Default, &None));
        assert_eq!(of(&all, "FI_STRAIT_EAGER_SIZE").value, link::eager_size().to_string());
        assert_eq!(of(&with(&[("cma", "no")]), "FI_STRAIT_EAGER_SIZE").value, "8192");
    }

    #[test]
    fn what_no_frame_has_room_for_is_cut() {
        let all = with(&[("ring_size", "24K"), ("eager_size", "64K")]);
        let eager = of(&all, "FI_STRAIT_EAGER_SIZE");
        assert_eq!(eager.value, link::eager_most(24 << 10).to_string());
        assert!(eager.problem.is_some());
    }
}
