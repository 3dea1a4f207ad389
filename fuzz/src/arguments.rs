//! Arguments made by the rules of a tool, and such as nearly keep to them.

use crate::meaning::{Rule, Rules};
use crate::spelling::{self, Fields};
use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

/// What the tool takes, mostly. Ids are some of those given, if there are any.
pub fn of(u: &mut Unstructured<'_>, rules: Rules, ids: &[String]) -> Result<Fields> {
    rules.iter().map(|(name, rule)| Ok(((*name).to_owned(), of_rule(u, *rule, ids)?))).collect()
}

fn of_rule(u: &mut Unstructured<'_>, rule: Rule, ids: &[String]) -> Result<Value> {
    Ok(match rule {
        Rule::Key => json!(*u.choose(&["k", "k0", "K", "k_", "-", "01890a5d-ac96-774b-bcce-b302099a8057"])?),
        Rule::Text(128) => {
            json!(*u.choose(&["create_note", "create_automation", "set_interval", "start_deployment", "get_note"])?)
        }
        Rule::Text(most) => {
            let text = spelling::text(u)?.replace('\0', "0");
            Value::String(if text.is_empty() { "a".to_owned() } else { text.chars().take(most).collect() })
        }
        // Versions are small, where they fit.
        Rule::Integer(least, most) => match u.int_in_range(0..=3)? {
            0 => json!(u.int_in_range(least..=most)?),
            1 => json!(most),
            _ => json!(least + u.int_in_range(0..=3)?),
        },
        Rule::Id if ids.is_empty() => {
            json!(spelling::id(u, "01890a5d-ac96-774b-bcce-b302099a8057")?)
        }
        Rule::Id => {
            let id = u.choose(ids)?;
            json!(spelling::id(u, id)?)
        }
    })
}

/// One field otherwise, or gone, or there twice, or one more; mostly nothing.
pub fn change(u: &mut Unstructured<'_>, rules: Rules, fields: &mut Fields) -> Result<()> {
    if fields.is_empty() {
        return Ok(());
    }
    let field = u.choose_index(fields.len())?;
    match u.int_in_range(0..=12)? {
        0 => drop(fields.remove(field)),
        1 => {
            let twice = fields[field].clone();
            fields.push(twice);
        }
        2 => fields.push((spelling::text(u)?, spelling::value(u, 2)?)),
        3 => fields[field].1 = spelling::value(u, 2)?,
        4 => fields[field].0 = spelling::text(u)?,
        5 => {
            if let Some((_, rule)) = rules.get(field) {
                fields[field].1 = of_rule(u, *rule, &[])?;
            }
        }
        6 => {
            if let Value::String(text) = &mut fields[field].1 {
                text.push_str(&spelling::text(u)?);
            }
        }
        7 => {
            if let Some(number) = fields[field].1.as_u64() {
                fields[field].1 = json!(number as f64 + u.choose(&[0.5, 0.25, 1e-9, -1.0])?);
            }
        }
        8 => {
            if let Value::String(text) = &fields[field].1 {
                fields[field].1 = Value::String(spelling::id(u, text)?);
            }
        }
        _ => {}
    }
    Ok(())
}
