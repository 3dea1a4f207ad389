//! Two texts of arguments for one tool: the canonical forms are equal if and only if the texts mean the same.

use crate::arguments;
use crate::meaning::{KEYED, Meaning, Rules, TOOLS, meaning};
use crate::spelling;
use arbitrary::{Result, Unstructured};
use counterfoil::arguments::parse;
use counterfoil::engine::receipts::canonical;
use counterfoil::tool::Tool;
use counterfoil::tools::automations::{CreateAutomation, SetInterval};
use counterfoil::tools::deployments::StartDeployment;
use counterfoil::tools::notes::CreateNote;

/// Any bytes.
pub fn run(data: &[u8]) {
    // What is too short says less, and is no fault.
    let _ = two_texts(&mut Unstructured::new(data));
}

fn two_texts(u: &mut Unstructured<'_>) -> Result<()> {
    let (tool, rules) = TOOLS[u.choose_index(KEYED)?];
    let [one, other] = if u.ratio(1, 8)? {
        let texts = u.arbitrary::<&str>()?;
        let (one, other) = texts.split_once('\0').unwrap_or((texts, texts));
        [one.to_owned(), other.to_owned()]
    } else {
        let mut fields = arguments::of(u, rules, &[])?;
        let one = spelling::object(u, &fields)?;
        // Mostly the same in other words.
        arguments::change(u, rules, &mut fields)?;
        [one, spelling::object(u, &fields)?]
    };
    match tool {
        "create_note" => check::<CreateNote>(rules, [&one, &other]),
        "create_automation" => check::<CreateAutomation>(rules, [&one, &other]),
        "set_interval" => check::<SetInterval>(rules, [&one, &other]),
        _ => check::<StartDeployment>(rules, [&one, &other]),
    }
    Ok(())
}

fn check<T: Tool>(rules: Rules, texts: [&str; 2]) {
    let one = checked::<T>(rules, texts[0]);
    let other = checked::<T>(rules, texts[1]);
    if let (Some(one), Some(other)) = (one, other) {
        agree(&one, &other);
    }
}

/// The canonical form of a text, with what it means.
fn checked<T: Tool>(rules: Rules, text: &str) -> Option<(String, Meaning)> {
    let means = meaning(rules, text);
    let parsed = parse::<T>(text);
    assert_eq!(parsed.is_ok(), means.is_some(), "{}: {text}: {:?}", T::NAME, parsed.err());
    let written = canonical(&parsed.ok()?);
    assert_eq!(meaning(rules, &written), means, "{text} became {written}");
    let again = parse::<T>(&written).map(|again| canonical(&again));
    assert_eq!(again.as_ref(), Ok(&written), "{text} became {written}");
    Some((written, means?))
}

/// # Panics
///
/// If they do not.
pub fn agree((one, first): &(String, Meaning), (other, second): &(String, Meaning)) {
    assert_eq!(one == other, first == second, "{one} and {other}");
}
