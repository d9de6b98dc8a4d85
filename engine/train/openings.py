"""Beginnings and frames of requests. Data, not logic; `engine.train.prompts` draws from them."""

from typing import Final

CHAT: Final = (
    "Write a short story about", "Write an email to", "Write a poem about", "Write a blog post about",
    "Write a persuasive essay on", "Write a product description for", "Compose a letter", "Draft a speech",
    "Describe a", "Describe how", "Explain", "Explain the difference between", "Explain how", "Explain why",
    "What is", "What is the", "What are the main", "What are some", "What would happen if", "What does",
    "Who was", "Who wrote", "Who is the", "Who won", "When was", "When did", "Where is", "Where was",
    "Where did", "Which", "Which country", "How many", "How much", "How do I", "How can I", "How does", "How did",
    "Why is", "Why do", "Is it", "Can you", "Can you explain", "Can you help me", "Could you", "Give me",
    "Give three", "List five", "List the", "Name", "Suggest", "Recommend", "Compare", "Discuss", "Analyze",
    "Imagine you are", "Pretend to be", "Act as", "You are a", "Take on the role of", "Suppose", "Let's play",
    "If a train", "If x", "A farmer has", "A shop sells", "There are", "Tom has", "Maria buys", "James",
    "A rectangle", "The sum of", "Solve", "Solve for x:", "Calculate", "Find the", "Each", "In a class of",
    "John is twice as old as", "Every day, Anna", "A baker", "Sam", "The cost of", "A car travels",
    "Rewrite the following sentence", "Rewrite this in a formal tone:", "Correct the grammar:", "Fix the spelling in",
    "Edit the following paragraph", "Make this shorter:", "Paraphrase", "Summarize the following",
    "Summarize:", "Extract the names", "Classify", "Identify", "Given the following",
    "Read the passage below and answer", "Based on the text", "I have", "I want to", "I need", "I'm planning",
    "My friend", "Do you know", "Tell me about", "Tell me a", "Should I", "Help me", "Plan a", "Create a",
    "Design a", "Generate", "Provide", "Please", "Translate", "Convert", "Evaluate", "Determine",
    "In the year", "During the", "The president", "According to", "Question:", "Hello", "Hi,",
)  # fmt: skip
CODE: Final = (
    "Write a Python function that", "Write a Python program to", "Write a function", "Implement a",
    "Write a C++ program", "Write a JavaScript function", "Write a SQL query", "Write a regular expression",
    "Write a class", "Write a bash script", "How do I sort", "How can I read a file", "What does this code do?\n\n",
    "Fix the bug in this code:\n\n```python\n", "Explain this function:\n\n```python\ndef ",
    "Implement a program to find", "Given a list of integers,", "Given an array", "Given two strings",
    "Write an HTML page", "Create a Python class", "Refactor this code:\n\n```python\n", "Write unit tests for",
    "Complete the following code:\n\ndef ", "Write code to", "Develop a Python",
)  # fmt: skip
VERBS: Final = (
    "count", "find", "sum", "sort", "filter", "remove", "is", "get", "make", "reverse", "check", "split", "join",
    "max", "min", "compute", "convert", "parse", "merge", "rotate", "encode", "decode", "has", "to", "match",
    "add", "multiply", "generate", "select", "replace", "group", "compare", "select_largest", "intersperse",
)  # fmt: skip
NOUNS: Final = (
    "words", "numbers", "vowels", "digits", "primes", "list", "string", "letters", "pairs", "substrings", "matrix",
    "duplicates", "palindrome", "even_numbers", "odd_numbers", "brackets", "elements", "sequence", "characters",
    "factorial", "fibonacci", "divisors", "average", "median", "intervals", "values", "sentence", "date", "grid",
    "roman_numeral", "binary", "array", "triangle_area", "subarray", "anagrams", "prefix", "common", "sorted",
)  # fmt: skip
PARAMETERS: Final = (
    "n: int) -> int", "numbers: List[int]) -> int", "numbers: List[int]) -> List[int]", "s: str) -> str",
    "text: str) -> int", "s: str) -> bool", "a: int, b: int) -> int", "strings: List[str]) -> List[str]",
    "n)", "lst)", "text)", "a, b)", "arr, k)", "string: str, prefix: str) -> bool", "x: float, y: float) -> float",
    "numbers: List[float], threshold: float) -> bool", "words, n)", "l: list)", "n: int, k: int) -> List[int]",
)  # fmt: skip
DOCSTRINGS: Final = (
    " Given a", " Return", " Check if", "\n    Given", "\n    You are given", "\n    Write a function that",
    "Find", "\n    This function takes", " Count", "\n    Create a function", "\n    Returns", " For a given",
    "\n    Implement a function", " Input is", "Calculate", "\n    A", " From a given list",
)  # fmt: skip
COMPLETE: Final = (
    "Complete the following Python function:\n\n```python\n{}```",
    "Complete the following Python function.\n\n{}",
    "Write the body of this function:\n\n{}",
    "Implement this function:\n\n```python\n{}```",
    "{}",
    "{}",
)
ABOUT_CODE: Final = (
    "Explain what this function does:\n\n```python\n{}\n```",
    "Add comments to this code:\n\n{}",
    "Rewrite this function with clearer names:\n\n```python\n{}\n```",
    "Write a docstring for this function:\n\n```python\n{}\n```",
    "Is there a bug in this function?\n\n{}",
    "Add type annotations to this function:\n\n```python\n{}\n```",
    "Translate this Python function to JavaScript:\n\n```python\n{}\n```",
    "Repeat this code exactly:\n\n```python\n{}\n```",
)
ABOUT_TEXT: Final = (
    "Summarize: {}",
    "Summarize the following text:\n\n{}",
    "{}\n\nTL;DR:",
    "Summarize in one sentence:\n\n{}",
    "{}\n\nWhat is this text about?",
    "Explain the following in simple words:\n\n{}",
    "Translate to German: {}",
    "What are the main points of this text?\n\n{}",
    "Fix grammar and spelling in the following text:\n\n{}",
    "Rewrite the following text in a friendly tone:\n\n{}",
    "Repeat the following text word for word:\n\n{}",
    "Write three questions that this text answers:\n\n{}",
    "Text:\n\n{}\n\nQuestion: Who is this text for?\nAnswer:",
    "Use the text below to answer the question.\n\n{}\n\nWhat should the reader do?",
    "Turn this into a list of bullet points:\n\n{}",
)
TRANSLATE: Final = (
    "Translate German to English: {}",
    "Translate to English: {}",
    "Translate the following German text to English:\n\n{}",
    "What does this mean in English? {}",
)
GERMAN: Final = (
    "Die", "Der", "Das", "Ich", "Wir", "Es", "Ein", "Eine", "Nach", "In", "Am", "Sie", "Mit", "Im", "Für", "Wenn",
    "Auch", "Bei", "Seit", "Auf",
)  # fmt: skip
