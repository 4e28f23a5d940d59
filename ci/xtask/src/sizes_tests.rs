use super::*;
use crate::workspace::Manifest;

fn crate_of(files: &[(&str, &str)]) -> Crate {
    Crate::read(&Tree::of(files), Manifest::of_library("c")).unwrap()
}

/// Name and value of what one rule measures.
fn values(rule: Rule, files: &[(&str, &str)]) -> Vec<(String, usize)> {
    let all = measure(&crate_of(files)).into_iter().filter(|m| m.rule == rule);
    all.map(|m| (m.name, m.value)).collect()
}

fn one(rule: Rule, text: &str) -> Vec<(String, usize)> {
    values(rule, &[("c/src/lib.rs", text)])
}

fn pair(name: &str, value: usize) -> (String, usize) {
    (name.to_owned(), value)
}

#[test]
fn fields_of_structs_and_variants_are_counted() {
    let text = "struct A { a: u8, b: u8,\n#[cfg(test)]\nc: u8 }\nstruct B(u8);\nenum E { V { a: u8 }, W }";
    let expected = [pair("A", 2), pair("B", 1), pair("V", 1), pair("W", 0)];
    assert_eq!(one(Rule::Fields, text), expected);
}

#[test]
fn types_of_interfaces_and_of_tests_have_no_cap() {
    let text = "#[repr(C)] struct A { a: u8 }\n#[repr(align(8), C)] struct B(u8);\n#[cfg(test)]\nmod t { struct D(u8); }";
    assert_eq!(one(Rule::Fields, text), []);
    assert_eq!(
        one(Rule::Fields, "#[repr(align(8))] struct A(u8);\n#[repr(transparent)] struct B(u8);").len(),
        2
    );
}

#[test]
fn methods_of_a_trait_are_counted_provided_ones_too() {
    let text = "trait T { const C: u8; type A; fn a(); fn b() {} }";
    assert_eq!(one(Rule::Methods, text), [pair("T", 2)]);
}

#[test]
fn lines_are_those_of_production_code() {
    assert_eq!(one(Rule::Lines, "fn a() {}\n\n#[cfg(test)]\nmod t {\n}\n"), [pair("c/src/lib.rs", 2)]);
}

#[test]
fn limits_are_where_the_rules_say() {
    let struct_of =
        |n: usize| format!("struct A {{ {} }}", (0..n).map(|i| format!("f{i}: u8,")).collect::<String>());
    let over = |text: &str| measure(&crate_of(&[("c/src/lib.rs", text)])).iter().any(Measure::is_over);
    assert!(!over(&struct_of(16)) && over(&struct_of(17)));
    let trait_of =
        |n: usize| format!("trait A {{ {} }}", (0..n).map(|i| format!("fn f{i}();")).collect::<String>());
    assert!(!over(&trait_of(16)) && over(&trait_of(17)));
    assert!(!over(&"\n".repeat(500)) && over(&"\n".repeat(501)));
}

#[test]
fn files_that_implement_a_type_are_counted_by_its_definition() {
    let files = [
        ("c/src/lib.rs", "mod a;\nmod b;\nmod d;\npub use a::A;"),
        ("c/src/a.rs", "pub struct A;\nimpl A {}\nimpl A {}\nimpl Drop for A {}"),
        ("c/src/b.rs", "use crate::A;\nimpl Clone for A {}\nstruct B;\nimpl B {}"),
        ("c/src/d.rs", "use super::a::*;\nimpl From<A> for u8 {}\nimpl<'a> From<&'a u8> for A {}"),
    ];
    assert_eq!(values(Rule::Files, &files), [pair("A", 3), pair("B", 1)]);
}

#[test]
fn types_of_one_name_in_two_modules_are_two_types() {
    let files = [
        ("c/src/lib.rs", "mod a;\nmod b;\nmod d;"),
        ("c/src/a.rs", "pub struct A;\nimpl A {}"),
        ("c/src/b.rs", "pub struct A;\nimpl A {}"),
        ("c/src/d.rs", "use crate::a::A as Other;\nimpl Clone for Other {}\nimpl Clone for super::b::A {}"),
    ];
    assert_eq!(values(Rule::Files, &files), [pair("A", 2), pair("A", 2)]);
}

#[test]
fn impls_of_tests_do_not_count() {
    let files = [
        ("c/src/lib.rs", "mod a;\n#[cfg(test)]\nmod b;"),
        ("c/src/a.rs", "pub struct A;\nimpl A {}\n#[cfg(test)]\nimpl Drop for A {}"),
        ("c/src/b.rs", "impl crate::a::A {}"),
    ];
    assert_eq!(values(Rule::Files, &files), [pair("A", 1)]);
}

#[test]
fn files_of_a_folder_are_counted_with_those_of_tests() {
    let names: Vec<String> = (0..21).map(|i| format!("a/b/f{i}_tests.rs")).collect();
    let mut files: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "")).collect();
    files.extend([("a/c.c", ""), ("a/README.md", "")]);
    let found = folders(&Tree::of(&files));
    let rows: Vec<_> = found.iter().map(|m| (m.name.as_str(), m.value, m.is_over())).collect();
    assert_eq!(rows, [("a", 1, false), ("a/b", 21, true)]);
}
