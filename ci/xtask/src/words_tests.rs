use super::*;

const TABLE: &str = "| term | meaning | word in code that it is to replace |\n|---|---|---|\n\
    | completion | an entry | `told` |\n| cooperative copy | both copy | `Share`, `Lent` |\n\
    | arm | ask for a wake-up | `ring()` |\n| poll | read | `look`, `glance` |\n\
    | barrier | lfence | `look_no_further` |\n| expected | posted | `asked for` |\n| origin | `x` | |\n";

fn source(text: &str) -> Source {
    Source::parse("a.rs", text).unwrap()
}

/// Lines and words found in a text.
fn words(text: &str) -> Vec<(usize, String)> {
    all_words(&source(text), &table(TABLE))
}

fn only(text: &str) -> Vec<String> {
    words(text).into_iter().map(|(_, word)| word).collect()
}

#[test]
fn the_table_has_each_word_once_and_phrases_first() {
    let found = table(TABLE);
    assert_eq!(found.len(), 10);
    assert_eq!(found[0].parts, ["look", "no", "further"]);
    assert!(found.iter().any(|w| w.call && w.parts == ["ring"]));
    assert_eq!(table("no table").len(), ALWAYS.len());
}

#[test]
fn sound_comments_and_names_have_no_word() {
    let text = "//! Shares, a ring, lookup; toll.\n/// Share of a peer. We look at more.\nfn lookup(share: u8, ring: u8) {}";
    assert_eq!(only(text), [""; 0]);
}

#[test]
fn words_of_comments_are_found_with_their_line() {
    let text =
        "/// It was told\n/// of a Lent copy that it asked\n/// for: `Glance`.\nfn f() { /* tells */ }";
    let expected = [(1, "told"), (2, "Lent"), (2, "asked for"), (3, "glance"), (4, "tells")];
    assert_eq!(words(text), expected.map(|(line, word)| (line, word.to_owned())));
}

#[test]
fn names_are_found_where_they_are_defined() {
    let text = "struct Told { told_at: u8 }\nenum E { NoLent }\nfn ring(glance: u8) { let tell_all = glance; f(tell_all) }";
    let expected =
        ["told: Told", "told: told_at", "Lent: NoLent", "glance: glance", "ring: ring", "tell: tell_all"];
    assert_eq!(only(text), expected);
}

#[test]
fn phrases_of_names_count_once() {
    assert_eq!(only("fn look_no_further() {}"), ["look no further: look_no_further"]);
    assert_eq!(only("fn look() {}\nfn ring_size() {}"), ["look: look"]);
    assert_eq!(only("fn share() {}\nstruct Share;\nconst TOLD: u8 = 1;"), ["Share: Share", "told: TOLD"]);
}

#[test]
fn names_of_a_trait_count_at_the_trait() {
    assert_eq!(only("trait T { fn told(); }\nimpl T for u8 { fn told() {} }"), ["told: told"]);
    assert_eq!(only("impl T for u8 { fn f(told: u8) { let x = told; } }"), ["told: told"]);
}

#[test]
fn tests_are_left_out() {
    assert_eq!(only("#[cfg(test)]\nmod tests {\n    // told\n    fn told() {}\n}"), [""; 0]);
}

#[test]
fn comment_lines_have_110_columns() {
    let line = |columns: usize| format!("// a {}\n", "b".repeat(columns - 5));
    assert_eq!(columns(&source(&line(110))), []);
    assert_eq!(columns(&source(&line(111))), [(1, "111 columns".to_owned())]);
    assert_eq!(columns(&source(&format!("fn f() {{}} {}", line(101)))).len(), 1);
    assert_eq!(columns(&source(&format!("// https://{}", "a".repeat(120)))), []);
    assert_eq!(columns(&source(&format!("const A: &str = \"{}\";", "a ".repeat(60)))), []);
}

#[test]
fn doc_comments_stand_alone() {
    assert_eq!(likewise(&source("// Likewise.\n/// Sends.\nfn f() {}")), []);
    let found = likewise(&source("/// Likewise, of a read.\nfn f() {}\n/// And likewise.\nfn g() {}"));
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 3]);
}
