//! What the library lets others see is listed in `public-api.txt`: it grows on purpose only.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// What a page says of an item lies before these sections, which say what it does by way of traits.
const TRAITS: &[&str] =
    &["trait-implementations", "synthetic-implementations", "blanket-implementations", "implementors"];
/// The members of an item, by how a page names them.
const MEMBERS: &[&str] = &["structfield", "variant", "method", "tymethod", "associatedconstant", "associatedtype"];

/// Every item and every member of one that the rendered documentation of the crate shows.
fn public_items(documentation: &Path) -> BTreeSet<String> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let all = read(&documentation.join("all.html"));
    let lists = all.split("<ul class=\"all-items\">").skip(1).filter_map(|rest| rest.split("</ul>").next());
    let mut items = BTreeSet::new();
    for link in lists.flat_map(|list| list.split("<li><a href=\"").skip(1)) {
        let (page, rest) = link.split_once("\">").expect("a link");
        let (name, _) = rest.split_once('<').expect("a name");
        let kind = page.rsplit('/').next().and_then(|file| file.split('.').next()).expect("a kind");
        items.insert(format!("{name} {kind}"));
        let text = read(&documentation.join(page));
        let end = TRAITS.iter().filter_map(|section| text.find(&format!("id=\"{section}\""))).min();
        for id in text[..end.unwrap_or(text.len())].split("id=\"").skip(1) {
            let (id, _) = id.split_once('"').expect("an id");
            let Some((kind, member)) = id.split_once('.').filter(|(kind, _)| MEMBERS.contains(kind)) else { continue };
            // What follows a dash numbers what has one name, and `fields` is a heading.
            let member = member.split('-').next().unwrap_or(member);
            if !member.ends_with(".fields") {
                items.insert(format!("{name}::{} {kind}", member.replace(".field.", "::")));
            }
        }
    }
    items
}

#[test]
fn what_is_public_is_on_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documentation = match env::var_os("EIGHTFOLD_DOCUMENTATION") {
        Some(rendered) => rendered.into(),
        None => {
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder");
            let mut doc = Command::new(env!("CARGO"));
            doc.args(["doc", "--quiet", "--offline", "--no-deps", "--lib", "--package", "eightfold", "--target-dir"]);
            let status = doc.arg(target).current_dir(folder).status().expect("cargo");
            assert!(status.success(), "the documentation cannot be made: cargo doc -p eightfold says why");
            target.join("doc/eightfold")
        }
    };
    let items = public_items(&documentation);
    let text: String = items.iter().map(|item| format!("{item}\n")).collect();
    let list = folder.join("public-api.txt");
    if env::var_os("EIGHTFOLD_UPDATE").is_some() {
        fs::write(&list, &text).expect("the list is written");
    }
    let listed = fs::read_to_string(&list).unwrap_or_default();
    let listed: BTreeSet<_> = listed.lines().map(String::from).collect();
    let (added, removed) = (&items - &listed, &listed - &items);
    assert!(
        added.is_empty() && removed.is_empty(),
        "public items that public-api.txt does not list: {added:#?}\nlisted, but not there: {removed:#?}\nIf that is \
         meant: EIGHTFOLD_UPDATE=1 cargo test -p eightfold --test public_api"
    );
}
