//! The rules that have a number: what each measures, and its limit.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    Fields,
    Files,
    Folder,
    Lines,
    Methods,
    Columns,
    Likewise,
    Words,
}

impl Rule {
    pub const ALL: [Rule; 8] = [
        Rule::Fields,
        Rule::Files,
        Rule::Folder,
        Rule::Lines,
        Rule::Methods,
        Rule::Columns,
        Rule::Likewise,
        Rule::Words,
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.to_string() == name)
    }

    /// The largest sound value.
    pub fn limit(self) -> usize {
        match self {
            Rule::Fields | Rule::Methods => 16,
            Rule::Files => 2,
            Rule::Folder => 20,
            Rule::Lines => 500,
            Rule::Columns | Rule::Likewise | Rule::Words => 0,
        }
    }

    /// Whether the number is that of places in a crate.
    pub fn counts(self) -> bool {
        matches!(self, Rule::Columns | Rule::Likewise | Rule::Words)
    }

    pub fn unit(self) -> &'static str {
        match self {
            Rule::Fields => "fields",
            Rule::Files => "files with an impl",
            Rule::Folder => "source files",
            Rule::Lines => "lines",
            Rule::Methods => "methods",
            Rule::Columns => "comment lines of over 110 columns",
            Rule::Likewise => "doc comments with \"Likewise\"",
            Rule::Words => "words that CONTRIBUTING.md replaces",
        }
    }

    /// How a value above the limit is mended.
    pub fn advice(self) -> &'static str {
        match self {
            Rule::Fields => "group fields in types of their own",
            Rule::Files => "bring its impl blocks together, or give a part of its state a type of its own",
            Rule::Folder => "make a subfolder",
            Rule::Lines => "split the file",
            Rule::Methods => "split the trait",
            Rule::Columns => "wrap them",
            Rule::Likewise => "write a doc comment that stands alone",
            Rule::Words => "use the term of the table",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub file: String,
    pub line: usize,
    /// What is there.
    pub text: String,
}

/// A value that a rule limits.
#[derive(Debug, Clone)]
pub struct Measure {
    pub rule: Rule,
    /// The crate's name, or empty.
    pub package: String,
    /// The type, trait, file or folder; empty where a crate as a whole is counted.
    pub name: String,
    pub value: usize,
    /// The definition; of a rule that counts all of its places.
    pub sites: Vec<Site>,
}

impl Measure {
    /// What a line of the table of limits names: crate and name, as far as there are any.
    pub fn subject(&self) -> String {
        [self.package.as_str(), self.name.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }

    pub fn is_over(&self) -> bool {
        self.value > self.rule.limit()
    }
}
