//! The grammar of constraints: `left operator right`, joined by `and`, `or` and `xone`, with parentheses.

use super::compare::Number;
use super::{Constraint, Operator, compare};
use crate::consent::limits::{CONSTRAINT_DEPTH_MAX, CONSTRAINT_LEN_MAX, CONSTRAINT_PARTS_MAX};

/// Why a constraint is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// Too long, too deep, or of too many parts.
    #[error("a constraint with {count} {what} is over the limit of {max}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much.
        count: usize,
        /// How much is allowed.
        max: usize,
    },
    /// No operator of ODRL's, or one that a context cannot decide.
    #[error("{0:?} is no operator we know")]
    Operator(String),
    /// Something else should stand there.
    #[error("where {wanted} belongs there is {found}")]
    Unexpected {
        /// What should.
        wanted: &'static str,
        /// What does.
        found: String,
    },
    /// An order of what has none.
    #[error("{0:?} is neither a number nor a date, and cannot be greater or less")]
    NoOrder(String),
    /// A value with a type or unit, which we would have to ignore.
    #[error("{0:?} has a data type, which we do not read")]
    Typed(String),
    /// A quotation without its end.
    #[error("a quotation does not end")]
    Open,
}

/// Words that join, and are operands only in quotation marks.
const JOINS: [&str; 9] =
    ["and", "odrl:and", "AND", "or", "odrl:or", "OR", "xone", "odrl:xone", "XONE"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Quoted(String),
    Mark(char),
}

impl Token {
    fn shown(token: Option<&Self>) -> String {
        match token {
            None => "the end".to_owned(),
            Some(Self::Word(text) | Self::Quoted(text)) => format!("{text:?}"),
            Some(Self::Mark(mark)) => format!("{mark:?}"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, ConstraintError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if tokens.len() == CONSTRAINT_PARTS_MAX {
            let (what, max) = ("parts", CONSTRAINT_PARTS_MAX);
            return Err(ConstraintError::TooMuch { what, count: max + 1, max });
        }
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        rest = match first {
            '(' | ')' | '[' | ']' | '{' | '}' | ',' => {
                tokens.push(Token::Mark(first));
                after
            }
            '"' | '\'' => {
                let (inside, after) = after.split_once(first).ok_or(ConstraintError::Open)?;
                tokens.push(Token::Quoted(inside.to_owned()));
                after
            }
            _ => {
                let ends = |c: char| c.is_whitespace() || "()[]{},\"'".contains(c);
                let (word, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
                tokens.push(Token::Word(word.to_owned()));
                after
            }
        }
        .trim_start();
    }
    Ok(tokens)
}

pub(super) fn parse(text: &str) -> Result<Constraint, ConstraintError> {
    if text.len() > CONSTRAINT_LEN_MAX {
        let (what, count, max) = ("bytes", text.len(), CONSTRAINT_LEN_MAX);
        return Err(ConstraintError::TooMuch { what, count, max });
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let constraint = parser.either()?;
    match parser.peek() {
        None => Ok(constraint),
        found => Err(unexpected("the end, or and, or, xone", found)),
    }
}

fn unexpected(wanted: &'static str, found: Option<&Token>) -> ConstraintError {
    ConstraintError::Unexpected { wanted, found: Token::shown(found) }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += usize::from(token.is_some());
        token
    }

    /// Takes one of `words`, which join or mark and are never operands unless quoted.
    fn word(&mut self, words: &[&str]) -> bool {
        let found =
            matches!(self.peek(), Some(Token::Word(word)) if words.contains(&word.as_str()));
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(&Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    /// `or` binds least, then `xone`, then `and`.
    fn either(&mut self) -> Result<Constraint, ConstraintError> {
        let mut parts = vec![self.exactly()?];
        while self.word(&["or", "odrl:or", "OR"]) {
            parts.push(self.exactly()?);
        }
        Ok(joined(parts, Constraint::Any))
    }

    fn exactly(&mut self) -> Result<Constraint, ConstraintError> {
        let mut parts = vec![self.both()?];
        while self.word(&["xone", "odrl:xone", "XONE"]) {
            parts.push(self.both()?);
        }
        Ok(joined(parts, Constraint::One))
    }

    fn both(&mut self) -> Result<Constraint, ConstraintError> {
        let mut parts = vec![self.part()?];
        while self.word(&["and", "odrl:and", "AND"]) {
            parts.push(self.part()?);
        }
        Ok(joined(parts, Constraint::All))
    }

    fn part(&mut self) -> Result<Constraint, ConstraintError> {
        if !self.mark('(') {
            return self.comparison();
        }
        self.depth += 1;
        if self.depth > CONSTRAINT_DEPTH_MAX {
            let (what, count, max) = ("levels of parentheses", self.depth, CONSTRAINT_DEPTH_MAX);
            return Err(ConstraintError::TooMuch { what, count, max });
        }
        let inside = self.either()?;
        self.depth -= 1;
        if self.mark(')') {
            Ok(inside)
        } else {
            Err(unexpected("a closing parenthesis", self.peek()))
        }
    }

    fn comparison(&mut self) -> Result<Constraint, ConstraintError> {
        let left = match self.next() {
            Some(Token::Word(word)) if !JOINS.contains(&word.as_str()) => word,
            found => return Err(unexpected("an operand", found.as_ref())),
        };
        let operator = match self.next() {
            Some(Token::Word(word)) => operator(&word).ok_or(ConstraintError::Operator(word))?,
            found => return Err(unexpected("an operator", found.as_ref())),
        };
        let right = self.right(operator)?;
        if let Some(typed) = right.iter().find(|value| value.contains("^^")) {
            return Err(ConstraintError::Typed(typed.clone()));
        }
        let unordered =
            |value: &&String| Number::parse(value).is_none() && !compare::is_date(value);
        match right.iter().find(unordered).filter(|_| operator.is_order()) {
            Some(value) => Err(ConstraintError::NoOrder(value.clone())),
            None => Ok(Constraint::Compare { left, operator, right }),
        }
    }

    fn right(&mut self, operator: Operator) -> Result<Vec<String>, ConstraintError> {
        let close = [('[', ']'), ('{', '}'), ('(', ')')]
            .into_iter()
            .find_map(|(open, close)| (operator.is_set() && self.mark(open)).then_some(close));
        let mut values = vec![self.value()?];
        while operator.is_set() && self.mark(',') {
            values.push(self.value()?);
        }
        match close {
            Some(close) if !self.mark(close) => Err(unexpected("the end of a list", self.peek())),
            _ => Ok(values),
        }
    }

    fn value(&mut self) -> Result<String, ConstraintError> {
        match self.next() {
            Some(Token::Quoted(text)) => Ok(text),
            Some(Token::Word(text)) if !JOINS.contains(&text.as_str()) => Ok(text),
            found => Err(unexpected("a value", found.as_ref())),
        }
    }
}

fn joined(
    mut parts: Vec<Constraint>,
    join: impl FnOnce(Vec<Constraint>) -> Constraint,
) -> Constraint {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            join(parts)
        }
    }
}

/// ODRL's names, and those that policies write for people. `andSequence` is none of them: in which order
/// parts were met, a context does not say.
fn operator(word: &str) -> Option<Operator> {
    Some(match word.strip_prefix("odrl:").unwrap_or(word) {
        "eq" | "is" | "=" | "==" => Operator::Eq,
        "neq" | "isNot" | "!=" => Operator::Neq,
        "gt" | "greaterThan" | ">" => Operator::Gt,
        "gteq" | "greaterThanOrEqual" | "greaterThanOrEqualTo" | ">=" => Operator::Gteq,
        "lt" | "lessThan" | "<" => Operator::Lt,
        "lteq" | "lessThanOrEqual" | "lessThanOrEqualTo" | "<=" => Operator::Lteq,
        "isA" => Operator::IsA,
        "hasPart" => Operator::HasPart,
        "isPartOf" => Operator::IsPartOf,
        "isAllOf" => Operator::IsAllOf,
        "isAnyOf" => Operator::IsAnyOf,
        "isNoneOf" => Operator::IsNoneOf,
        _ => return None,
    })
}
