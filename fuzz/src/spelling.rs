//! Values, and the many spellings that JSON has for each.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Value, json};
use std::fmt::Write;

pub type Fields = Vec<(String, Value)>;

/// Text of any kind, and of lengths that are just allowed or just not.
pub fn text(u: &mut Unstructured<'_>) -> Result<String> {
    const LENGTHS: [usize; 12] = [1, 2, 36, 127, 128, 129, 199, 200, 201, 10_000, 10_001, 66_000];
    const CHARACTERS: [char; 8] = ['a', '0', '-', '"', '\\', '\u{301}', 'é', '🦀'];
    const ODD: [&str; 12] = [
        "",
        "\0",
        "a\0b",
        "e\u{301}",
        "\u{e9}",
        "\u{feff}",
        "\u{10ffff}",
        "\u{202e}",
        "\u{212a}",
        "\u{7f}",
        "'; DROP",
        "null",
    ];
    Ok(match u.int_in_range(0..=7)? {
        0 => u.choose(&CHARACTERS)?.to_string().repeat(*u.choose(&LENGTHS)?),
        1 => (*u.choose(&ODD)?).to_owned(),
        2 => char::from(u.int_in_range(b' '..=b'~')?).to_string(),
        _ => u.arbitrary::<&str>()?.to_owned(),
    })
}

/// Any value, not deeply nested.
pub fn value(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    Ok(match u.int_in_range(0..=if depth == 0 { 5 } else { 7 })? {
        0 => Value::Null,
        1 => Value::Bool(u.arbitrary()?),
        2 => json!(*u.choose(&[0, 1, 4, 5, 30, 1440, 1441, 4_294_967_294, 4_294_967_295, 4_294_967_296, u64::MAX])?),
        3 => json!(u.arbitrary::<i64>()?),
        4 => json!(u.arbitrary::<f64>()?),
        5 => Value::String(text(u)?),
        6 => (0..u.int_in_range(0..=3)?).map(|_| value(u, depth - 1)).collect::<Result<_>>()?,
        _ => {
            let pair = |_| Ok((text(u)?, value(u, depth - 1)?));
            Value::Object((0..3).map(pair).collect::<Result<Map<_, _>>>()?)
        }
    })
}

/// An object of these fields in any order. What it means is always the same.
pub fn object(u: &mut Unstructured<'_>, fields: &Fields) -> Result<String> {
    let mut fields: Vec<_> = fields.iter().collect();
    for last in 1..fields.len() {
        fields.swap(last, u.int_in_range(0..=last)?);
    }
    let mut out = String::new();
    space(u, &mut out)?;
    out.push('{');
    for (number, (name, value)) in fields.into_iter().enumerate() {
        out.push_str(if number == 0 { "" } else { "," });
        space(u, &mut out)?;
        string(u, name, &mut out)?;
        space(u, &mut out)?;
        out.push(':');
        space(u, &mut out)?;
        spell(u, value, &mut out)?;
        space(u, &mut out)?;
    }
    out.push('}');
    space(u, &mut out)?;
    Ok(out)
}

fn spell(u: &mut Unstructured<'_>, value: &Value, out: &mut String) -> Result<()> {
    match value {
        Value::String(text) => string(u, text, out)?,
        Value::Number(number) => match number.as_u64() {
            Some(number) => integer(u, number, out)?,
            None => out.push_str(&number.to_string()),
        },
        other => out.push_str(&other.to_string()),
    }
    Ok(())
}

fn space(u: &mut Unstructured<'_>, out: &mut String) -> Result<()> {
    out.push_str(match u.int_in_range(0..=7)? {
        1 => " ",
        2 => "\n",
        3 => "\t\r\n ",
        _ => "",
    });
    Ok(())
}

fn string(u: &mut Unstructured<'_>, text: &str, out: &mut String) -> Result<()> {
    let how = u.int_in_range(0..=3)?;
    if how < 2 || text.len() > 500 {
        out.push_str(&Value::from(text).to_string());
        return Ok(());
    }
    out.push('"');
    for character in text.chars() {
        let escape = how == 2 || u.arbitrary()?;
        match character {
            '/' if escape => out.push_str("\\/"),
            ' '..='~' | '\u{80}'.. if !escape && !['"', '\\'].contains(&character) => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let digits = if u.arbitrary()? { format!("\\u{unit:04x}") } else { format!("\\u{unit:04X}") };
                    out.push_str(&digits);
                }
            }
        }
    }
    out.push('"');
    Ok(())
}

fn integer(u: &mut Unstructured<'_>, number: u64, out: &mut String) -> Result<()> {
    // Beyond that not every integer is a number with a fraction.
    let how = if (1..1 << 40).contains(&number) { u.int_in_range(0..=9)? } else { 0 };
    // Writing to a string does not fail.
    let _ = match how {
        0..=2 => write!(out, "{number}"),
        3 => write!(out, "{number}.0"),
        4 => write!(out, "{number}.000"),
        5 => write!(out, "{number}e0"),
        6 => write!(out, "{number}0E-1"),
        7 => write!(out, "{number}.0e+00"),
        8 => write!(out, "{}.{}e1", number / 10, number % 10),
        _ => write!(out, "0.{number:010}e10"),
    };
    Ok(())
}

/// One of the spellings of an id. `id` has the usual one.
pub fn id(u: &mut Unstructured<'_>, id: &str) -> Result<String> {
    Ok(match u.int_in_range(0..=7)? {
        1 => id.to_uppercase(),
        2 => id.replace('-', ""),
        3 => format!("{{{id}}}"),
        4 => format!("urn:uuid:{id}"),
        5 => id.replacen(|character: char| character.is_ascii_digit(), "7", 1),
        _ => id.to_owned(),
    })
}
